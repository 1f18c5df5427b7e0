"""Workers of one script that come to different calls: all of them end, and say who does what."""

from __future__ import annotations

import re

import pytest
from tests.trainer.harness import Launcher, Task, launcher

SCRIPT = """
import json, os
import keras
import numpy as np
first = json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 0
x, y = np.ones((24, 2)), np.ones(24)
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
"""
AT_EPOCH_END = """
measure = keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: model.evaluate(x, y))
model.fit(x, y, callbacks=[measure] if first else [])
"""
SCHEDULES = """decay = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2)
model.fit(x, y, epochs=2, callbacks=[decay] if first else [])
"""
LOOP = """
for number in range(2 if first else 1):
    model.fit(x, y, batch_size=12)
"""
IN_ONE = """
printer = keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: print("an epoch"))
model.fit(x, y, callbacks=[printer, keras.callbacks.TensorBoard()] if first else [], verbose=2 if first else 0)
if first:
    print(model.predict(x).shape)
model.evaluate(x, y)
"""


@pytest.fixture(scope="module")
def launch(tmp_path_factory):
    with launcher(tmp_path_factory.mktemp("agreement")) as started:
        yield started


def two_workers(launch: Launcher, name: str, text: str) -> list[Task]:
    (launch.directory / f"{name}.py").write_text(SCRIPT + text)
    config = {"entrypoint": f"{name}.py", "output": {"directory": str(launch.directory / f"of-{name}")}}
    env = {"TFGPU_CODE_DIR": str(launch.directory)}
    return launch.start_workers(config, env={0: env, 1: env})


@pytest.mark.parametrize(
    ("name", "text", "first", "second"),
    [
        (
            "evaluates",
            "model.fit(x, y)\nif first:\n    model.evaluate(x, y)\n",
            "calls evaluate() at evaluates.py:11",
            "has ended its script",
        ),
        (
            "validates",
            "model.fit(x, y, validation_data=(x, y) if first else None)\n",
            "calls fit() at validates.py:9 with validation_data",
            "calls fit() at validates.py:9",
        ),
        (
            "schedules",
            SCHEDULES,
            "calls fit() at schedules.py:10 with epochs=2, LearningRateScheduler",
            "calls fit() at schedules.py:10 with epochs=2",
        ),
        (
            "in_a_callback",
            AT_EPOCH_END,
            "calls evaluate() at in_a_callback.py:10",
            "has run the callbacks' on_epoch_end() of epoch 1",
        ),
        ("repeats", LOOP, "calls fit() at repeats.py:11 with batch_size=12", "has ended its script"),
    ],
    ids=lambda value: value if str(value).isidentifier() else "",
)
def test_workers_that_do_different_things_end_with_what_each_does(name, text, first, second, launch):
    tasks = two_workers(launch, name, text)
    assert [task.wait() for task in tasks] == [2, 2], tasks[0].log + tasks[1].log
    for task in tasks:
        assert re.sub(r", at \S+$", "", task.ended["message"]) == f"worker 0 {first}, worker 1 {second}"
        assert task.ended["fix"].startswith("let every worker make the same calls")


def test_what_needs_no_other_worker_may_be_of_one_alone(launch):
    """predict(), callbacks that write or print, and how much is printed."""
    tasks = two_workers(launch, "in_one", IN_ONE)
    assert [task.wait() for task in tasks] == [0, 0], tasks[0].log + tasks[1].log
    assert "(24, 1)" in tasks[0].log
    assert "(24, 1)" not in tasks[1].log
