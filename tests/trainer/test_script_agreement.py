"""Workers of one script that come to different calls: all of them end, and say who does what."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from ml_dtypes import bfloat16
from tests.trainer.harness import Launcher, Task

from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.script.agreement import Agreement
from tfgpujob_trainer.train.equal_weights import _equal

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
held_out = (x, y) if first else None
model.fit(x, y, epochs=2, validation_data=held_out, callbacks=[decay] if first else [])
"""
OF_ITS_OWN = """
class Decay(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        self.model.optimizer.learning_rate = 0.001
model.fit(x, y, epochs=9, callbacks=[Decay()] if first else [])
"""
AT_THE_END = """
shrink = keras.callbacks.LambdaCallback(on_train_end=lambda *_: model.set_weights([w / 2 for w in model.get_weights()]))
model.fit(x, y, callbacks=[] if first else [shrink])
"""
IN_ONE = """
printer = keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: print("an epoch"))
model.fit(x, y, callbacks=[printer, keras.callbacks.TensorBoard()] if first else [], verbose=2 if first else 0)
if first:
    print(model.predict(x).shape)
model.evaluate(x, y)
"""


def test_a_worker_that_leaves_within_a_step_is_told_from_one_at_another_call():
    """The others' numbers of the step are added to its text."""
    damaged: Any = SimpleNamespace(differing=lambda _: ["has ias\x00\x14;", ""], barrier_before_exit=lambda: None)
    with pytest.raises(ConfigError, match="one worker has ended its script, and another is within a step"):
        Agreement(damaged, ["worker-0", "worker-1"], Path("a.py"))("has ended its script")


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
            "schedules",
            SCHEDULES,
            "calls fit() at schedules.py:11 with epochs=2, LearningRateScheduler, validation_data",
            "calls fit() at schedules.py:11 with epochs=2",
        ),
        (
            "in_a_callback",
            AT_EPOCH_END,
            "calls evaluate() at in_a_callback.py:10",
            "has run the callbacks' on_epoch_end() of epoch 1",
        ),
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


@pytest.mark.parametrize(
    ("name", "text", "step", "callbacks"),
    [
        ("own", OF_ITS_OWN, 2, "worker 0 has the callbacks Decay, worker 1 has no callbacks: what"),
        ("at_the_end", AT_THE_END, 1, "worker 0 has no callbacks, worker 1 has the callbacks LambdaCallback: what"),
    ],
    ids=lambda value: value if str(value).isidentifier() else "",
)
def test_workers_with_other_weights_end_before_they_publish_them(name, text, step, callbacks, launch):
    tasks = two_workers(launch, name, text)
    assert [task.wait() for task in tasks] == [2, 2], tasks[0].log + tasks[1].log
    for task in tasks:
        weights = "sequential/dense/kernel, sequential/dense/bias"
        said = f"the workers' weights differ after step {step}: {weights}, at {name}.py:"
        assert task.ended["message"].startswith(said)
        assert callbacks in task.log
    output = launch.directory / f"of-{name}"
    assert sorted(int(path.name.split("-")[-1]) for path in output.glob("checkpoints/step-*")) == [1]
    assert not (output / "model.keras").exists()


@pytest.mark.parametrize(
    ("mine", "equal"),
    [
        (np.float32([1 + 1e-5, 1e-9, np.nan]), True),
        (np.float32([1 + 1e-3, 1e-9, np.nan]), False),
        (np.float32([1, 1e-9, 0]), False),
        (np.float64([1 + 1e-5, 1e-9, np.nan]), False),
        (np.array([1.01, 0, np.nan], bfloat16), True),
        (np.array([1.2, 0, np.nan], bfloat16), False),
        (np.array([1, 0, 4]), False),
        (np.array([1, 0, 3]), True),
    ],
)
def test_rounding_is_no_difference(mine, equal):
    """For floating-point numbers, whose lower half of digits may depend on the GPU."""
    other = np.array([1, 0, 3 if mine.dtype == int else np.nan], mine.dtype)
    assert _equal(mine, other) is equal


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "share",
            "model.evaluate(*(rows[:20] if first else rows[20:] for rows in (x, y)))\n",
            "evaluate()'s data has 4 rows here and 20",
        ),
        ("noise", "model.fit(x, y, validation_data=(x + first, y))\n", "validation_data gives other rows here than"),
    ],
    ids=["share", "noise"],
)
def test_rows_to_evaluate_on_that_differ_are_refused(name, text, message, launch):
    tasks = two_workers(launch, name, text)
    assert [task.wait() for task in tasks] == [2, 2], tasks[0].log + tasks[1].log
    assert tasks[1].ended["message"].startswith(message)
    assert tasks[1].ended["fix"].startswith("let it give the same rows everywhere")
