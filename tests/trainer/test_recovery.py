"""Processes that are started again in their pods: at once, to the bit, and never when it was no failure."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from tests.machine import scaled
from tests.trainer.harness import Launcher, Task, ask, free_ports, trainer_config, until

from tfgpujob_trainer.supervise.processes import Streams, WarmProcess

CONFIG: dict[str, Any] = {"params": {"dropout": 0.3}, "checkpoint": {"everyEpochs": 1000}}
"""No checkpoint in storage but the last."""


def in_place(**more: str) -> dict[str, str]:
    return {"TFGPU_RECOVERY": "InPlace", "TFGPU_RECOVERY_TOKEN": "token", **more}


def two_workers(launch: Launcher, name: str, *, second: dict[str, str] | None = None, **config: Any) -> list[Task]:
    """Two workers, the second with additional environment variables."""
    leader = {"TFGPU_RECOVERY_LEADER": f"127.0.0.1:{free_ports(1)[0]}"}
    env = {0: in_place(**leader), 1: in_place(**leader, **(second or {}))}
    return launch.start_workers(trainer_config(launch.directory / name, **CONFIG, **config), env=env)


@pytest.fixture(scope="module")
def undisturbed(launch: Launcher) -> str:
    """The weights of two undisturbed workers, started without recovery."""
    tasks = launch.start_workers(trainer_config(launch.directory / "undisturbed", **CONFIG))
    assert [task.wait() for task in tasks] == [0, 0], tasks[0].log + tasks[1].log
    digest: str = tasks[0].ended["summary"]["weightsSha256"]
    return digest


def test_two_workers_train_without_it(undisturbed):
    assert undisturbed


@pytest.mark.deep
def test_a_worker_that_is_killed_costs_both_a_round_and_not_one_bit(launch, undisturbed):
    # Steps so long that copying the state costs next to nothing of them, also on a busy machine.
    second = {"TEST_DO": "die once", "TEST_AT": "11", "TEST_PAUSE": "0.1"}
    tasks = two_workers(launch, "killed", second=second)
    assert [task.wait() for task in tasks] == [0, 0], tasks[0].log + tasks[1].log
    assert tasks[0].ended["summary"]["weightsSha256"] == undisturbed
    assert "started again in place, for the 1st time, after: the training process was ended by SIGKILL" in tasks[1].log
    assert "was kept in memory" in tasks[0].log
    resumed = re.search(r"resuming after step (\d+)", tasks[0].log)
    assert resumed is not None
    assert 2 <= int(resumed[1]) <= 10
    # Who ends last is started again at once, which may be less than the millisecond that is worth a part.
    assert any("restarting" in task.ended["ledger"]["parts"] for task in tasks)
    for task in tasks:
        told = task.ended["ledger"]
        assert {"importing", "waiting", "tracing", "useful", "lost"} <= told["parts"].keys()
        moments = ["failed", "detected", "ended", "started", "imported", "resolved", "restored", "stepped"]
        assert list(told["marks"]) == moments
        assert sorted(told["marks"].values()) == list(told["marks"].values())
        assert re.search(r"goodput \d+\.\d% of \d+\.\d s: ", task.log)


@pytest.mark.deep
def test_who_is_lost_with_its_pod_loses_no_more_than_the_memory_of_the_others_does(launch, undisturbed):
    """The leader's pod in one job, the other one's in another: the remaining pod leaves the state for the next
    attempt.
    """
    slow = {"TEST_DO": "slow", "TEST_AT": "1", "TEST_SECONDS": "0.1", "TFGPU_JOB_UID": "u1"}

    def start(lost: int, attempt: int) -> tuple[int, list[Task]]:
        port, leader = free_ports(2)
        told = in_place(TFGPU_RECOVERY_LEADER=f"127.0.0.1:{leader}", TFGPU_ATTEMPT=str(attempt), **slow)
        env = {i: {**told, "TFGPU_PROGRESS_PORT": str(0 if i else port)} for i in (0, 1)}
        return port, launch.start_workers(trainer_config(launch.directory / f"lost-{lost}", **CONFIG), env=env)

    first = [start(lost, 1) for lost in (0, 1)]
    known = []
    for lost, (port, tasks) in enumerate(first):
        until(lambda: (ask(port).get("step") or 0) > 10)  # noqa: B023 (called at once)
        known.append(ask(port)["step"])
        tasks[lost].process.kill()
    for lost, (_, tasks) in enumerate(first):
        assert tasks[1 - lost].wait() == 160, tasks[1 - lost].log
    for lost, (_, tasks) in enumerate([start(lost, 2) for lost in (0, 1)]):
        assert [task.wait() for task in tasks] == [0, 0], tasks[0].log + tasks[1].log
        resumed = re.search(r"resuming after step (\d+)", tasks[0].log)
        assert resumed is not None, "there is no checkpoint in storage"
        assert int(resumed[1]) >= known[lost] - 10
        assert tasks[0].ended["summary"]["weightsSha256"] == undisturbed
        assert not list((launch.directory / f"lost-{lost}/checkpoints").glob("*last-copy-*"))


def replaced_leader(launch: Launcher, config: dict[str, Any], **told: str) -> tuple[Task, int]:
    """A leader whose pod was lost with what it had saved and replaced, at its end; and the last step known of it."""
    *ports, leader, progress = free_ports(4)
    cluster = {"worker": [f"127.0.0.1:{port}" for port in ports]}
    name = config["entrypoint"]

    def start(index: int, output: str, **more: str) -> Task:
        env = in_place(
            TFGPU_RECOVERY_LEADER=f"127.0.0.1:{leader}",
            TFGPU_RECOVERY_RESIZE="1",
            TF_CONFIG=json.dumps({"cluster": cluster, "task": {"type": "worker", "index": index}}),
            TFGPU_STRATEGY="MultiWorkerMirrored",
            TFGPU_REPLICA_TYPE="worker",
            TFGPU_REPLICA_INDEX=str(index),
            TFGPU_JOB_UID="u2",
            TFGPU_PROGRESS_PORT=str(0 if index else progress),
            TEST_SECONDS="0.1",
            **told,
            **more,
        )
        return launch.start({**config, "output": {"directory": str(launch.directory / f"{name}-{output}")}}, env=env)

    first, other = start(0, "first-leader"), start(1, "other")
    until(lambda: (ask(progress).get("step") or 0) > 10)
    known = ask(progress)["step"]
    first.process.kill()
    second = start(0, "second-leader", TFGPU_RECOVERY_JOINS="1", TFGPU_REPLICA_RESTART="1")
    assert [task.wait() for task in (second, other)] == [0, 0], second.log + other.log
    return second, known


def resumed_after(task: Task) -> int:
    resumed = re.search(r"resuming after step (\d+)", task.log)
    assert resumed is not None, task.log
    return int(resumed[1])


@pytest.mark.deep
def test_a_new_leader_s_pod_gets_the_state_from_the_other_pod_s_memory(launch, undisturbed):
    second, known = replaced_leader(launch, trainer_config(launch.directory, **CONFIG), TEST_DO="slow", TEST_AT="1")
    assert resumed_after(second) >= known - 10
    assert second.ended["summary"]["weightsSha256"] == undisturbed


SCRIPT = """
import json, os, time
import keras
import numpy as np

class Count(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.seen, self.mean = 0, keras.metrics.Mean()
    def on_train_batch_end(self, batch, logs=None):
        time.sleep(float(os.environ.get("TEST_SECONDS", "0")))
    def on_epoch_end(self, epoch, logs=None):
        self.seen += 1
    def on_train_end(self, logs=None):
        print("has seen", self.seen, "epochs", flush=True)

class First(Count):
    pass

keras.utils.set_random_seed(7)
x = np.random.default_rng(1).normal(size=(203, 6))
y = (x @ np.arange(18).reshape(6, 3)).argmax(1)
model = keras.Sequential([keras.Input((6,)), keras.layers.Dropout(0.3), keras.layers.Dense(3)])
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
of_first = [First()] if json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 0 else []
logger = keras.callbacks.CSVLogger(os.environ["TEST_CSV"])
stop = keras.callbacks.EarlyStopping("loss", patience=9, restore_best_weights=True)
model.fit(x, y, epochs=6, verbose=0, callbacks=[*of_first, Count(), logger, stop])
"""


@pytest.mark.deep
def test_so_it_does_with_a_script_whose_callbacks_are_not_all_on_the_other_worker(launch):
    """Its log is in a volume, and has each epoch once."""
    (launch.directory / "script.py").write_text(SCRIPT)
    config = {"entrypoint": "script.py", "checkpoint": CONFIG["checkpoint"]}
    logs = [launch.directory / f"{name}.csv" for name in ("undisturbed", "disturbed")]
    told = [{"TFGPU_CODE_DIR": str(launch.directory), "TEST_CSV": str(log)} for log in logs]
    undisturbed = {**config, "output": {"directory": str(launch.directory / "script")}}
    tasks = launch.start_workers(undisturbed, env=dict.fromkeys((0, 1), told[0]))
    assert [task.wait() for task in tasks] == [0, 0], tasks[0].log + tasks[1].log
    second, known = replaced_leader(launch, config, **told[1])
    assert resumed_after(second) >= known - 10
    assert second.ended["summary"]["weightsSha256"] == tasks[0].ended["summary"]["weightsSha256"]
    assert second.log.count("has seen 6 epochs") == 2
    assert logs[0].read_text() == logs[1].read_text()


def test_an_exception_of_the_user_is_never_tried_again(launch):
    tasks = two_workers(launch, "raised", second={"TEST_DO": "raise", "TEST_AT": "11"})
    assert [task.wait() for task in tasks] == [160, 1], tasks[0].log + tasks[1].log
    assert not any("started again in place, for" in task.log for task in tasks)


def test_a_crash_at_each_start_is_the_pods(launch):
    """What a batch, a bug or a driver does to every start is no news after the second time."""
    config = trainer_config(launch.directory / "crashes")
    task = launch.start(config, env=in_place(TEST_DO="die", TEST_AT="1")).ends(137)
    assert task.log.count("started again in place, for") == 1
    assert "not started again in place: a second failure without a step in between" in task.log


@pytest.mark.deep
def test_a_process_that_is_lost_before_it_forks_again_is_done_without(capfd):
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"}
    warm = WarmProcess(environment)
    arguments = ["--no-such-argument"]
    with Path(os.devnull).open("w") as nowhere:
        streams = Streams(nowhere.fileno(), nowhere.fileno(), nowhere.fileno())
        assert warm.spawn(arguments, environment, streams).wait(scaled(60)) == 2
        warm.close()
        assert warm.spawn(arguments, environment, streams).wait(scaled(60)) == 2
    printed = capfd.readouterr()
    assert "is lost: the next one imports it again" in printed.out
    assert printed.err == "", "TensorFlow's import is quiet"
