"""ParameterServer with real processes: no update is lost, and a killed task comes back."""

from __future__ import annotations

import json
import os
import re
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from tests.machine import scaled
from tests.trainer.harness import Task, ask, trainer_config, until
from tests.trainer.reference import plain_keras_weights
from tests.trainer.servers import ServerJob

from tfgpujob_trainer.checkpoints.store import newest
from tfgpujob_trainer.parameter_server.dispatch import Dispatcher


def wide_and_deep(output: Path, **fields):
    return {
        "entrypoint": "wide_and_deep",
        "globalBatchSize": 128,
        "logEverySeconds": 1,
        "output": {"directory": str(output)},
        **fields,
    }


def iterations(output: Path) -> int:
    """The optimizer's own count in the newest checkpoint: what the parameter server added up."""
    saved = newest(output)
    assert saved is not None
    (name,) = [name for name in saved.arrays() if name.startswith("optimizer/") and name.endswith("/iteration")]
    return int(saved.arrays()[name])


def step_of(task: Task) -> int:
    lines = task.progress()
    return lines[-1]["step"] if lines else 0


def test_one_worker_equals_plain_keras(launch):
    output = launch.directory / "undisturbed"
    job = ServerJob(launch, trainer_config(output, epochs=3), workers=1)
    assert job.chief.wait() == 0, job.logs()
    found = keras.saving.load_model(output / "model.keras").get_weights()
    assert max(np.abs(a - b).max() for a, b in zip(found, plain_keras_weights(epochs=3), strict=True)) < 1e-10
    summary = job.chief.ended["summary"]
    assert (summary["examples"], summary["repeatedSteps"]) == (3 * 203, 0)
    assert summary["steps"] == iterations(output) == 3 * 7
    job.end()


@pytest.mark.deep
def test_one_worker_whose_server_and_chief_are_killed_equals_plain_keras(launch):
    """They continue from a copy in the chief's memory: there is no checkpoint in storage."""
    output = launch.directory / "exact"
    config = trainer_config(output, epochs=40, checkpoint={"everyEpochs": 1000}, logEverySeconds=1)
    job = ServerJob(launch, config, workers=1, in_place=True)
    for name, epoch in (("ps-0", 5), ("chief-0", 20)):
        job.chief.wait_for(f"epoch {epoch}/40")
        job.kill_process(name)
    assert job.chief.wait() == 0, job.logs()
    found = keras.saving.load_model(output / "model.keras").get_weights()
    expected = plain_keras_weights(epochs=40)
    assert max(np.abs(a - b).max() for a, b in zip(found, expected, strict=True)) < 1e-10
    assert "global_clipnorm=0.1" in job.chief.log
    assert job.chief.log.count("was kept in memory") == 2
    assert job.chief.ended["inPlaceRestarts"] == 2
    assert job.tasks["worker-0"].log.count("started again") == 1, "with the server, and not with the chief"
    job.end()


@pytest.mark.deep
@pytest.mark.parametrize(("workers", "epochs"), [(2, 2), (4, 8)])
def test_every_step_counts_once_and_the_model_learns(launch, workers, epochs):
    output = launch.directory / f"workers{workers}"
    by_time = {"everySeconds": 1, "keep": 100}
    config = wide_and_deep(
        output, epochs=epochs, evaluate={"everyEpochs": epochs // 2}, export={"savedModel": True}, checkpoint=by_time
    )
    job = ServerJob(launch, config, workers=workers, servers=2)
    assert job.chief.wait() == 0, job.logs()
    summary = job.chief.ended["summary"]
    assert summary["steps"] == iterations(output) == epochs * 313
    assert (summary["examples"], summary["repeatedSteps"]) == (epochs * 40000, 0)
    learnt = epochs / 8  # four workers learn as much in eight epochs; 0.51 is the most frequent answer
    assert summary["splits"]["test"]["accuracy"] > 0.51 + 0.17 * learnt
    assert summary["splits"]["train"]["accuracy"] > 0.51 + 0.19 * learnt
    saved = {int(path.name.removeprefix("step-")) for path in (output / "checkpoints").glob("step-*")}
    assert any(step % 313 for step in saved), "when a second is over, and not with an epoch"
    assert all("asks for a first batch" in job.tasks[f"worker-{i}"].log for i in range(workers))

    x, _ = job_data("test")
    some = {name: values[:5] for name, values in x.items()}
    model = keras.saving.load_model(output / "model.keras")
    served = tf.saved_model.load(output / "saved_model")
    assert np.allclose(served.serve(some), model(some), atol=1e-6)
    worker = job.tasks["worker-0"]
    worker.process.terminate()
    assert worker.wait() == 143
    job.end()


def job_data(split):
    from tfgpujob_trainer.builtin import wide_and_deep as module  # noqa: PLC0415 (this test's own)

    x, y = module.data(split, rows=800)
    return {name: np.asarray(v, "float32") if v.dtype.kind == "f" else v for name, v in x.items()}, y


def test_a_table_stays_where_it_is():
    """A step reads the rows that it needs, and its gradient is those rows, which an optimizer is given as by Keras."""
    script = Path(__file__).parent / "sparse_script.py"
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, script],
        check=True,
        capture_output=True,
        text=True,
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
    )
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["whole tables"] == []
    assert (found["writes"] > 3, found["early"]) == (True, []), "a variable changes before the rows are there"
    assert {"ResourceGather", "ResourceScatterSub", "Atan"} <= set(found["ops"])


def seconds_until(condition: Callable[[], bool], job: ServerJob) -> float:
    began = time.monotonic()
    until(lambda: condition() or job.chief.process.poll() is not None)
    assert condition(), job.logs()
    return time.monotonic() - began


@pytest.mark.deep
def test_whoever_dies_comes_back(launch):
    """kill -9 of each role, first of the process and then of the container.

    In place, only those restart that must; whose pod is restarted is decided by the operator's restart_scope.py.
    """
    output = launch.directory / "killed"
    job = ServerJob(launch, wide_and_deep(output, epochs=100_000), workers=2, servers=2, in_place=True)
    seconds_until(lambda: step_of(job.chief) > 400, job)
    seconds = {name: kill_process(job, name) for name in ("worker-1", "chief-0", "ps-0")}
    assert ask(job.port)["inPlaceRestarts"] == 3
    seconds_until(lambda: job.tasks["worker-1"].log.count("asks for a first batch") == 3, job)
    assert started_again(job) == {"worker-0": 1, "worker-1": 2, "chief-0": 2, "ps-0": 1}, "all with the server"

    job.kill("worker-1")
    at = steps(job)
    seconds_until(lambda: steps(job) > at + 50, job)
    back = job.start("worker-1")
    seconds_until(lambda: "asks for a first batch" in back.log, job)

    # The chief detects that this server can't report, and does not wait for it.
    first = job.chief
    job.kill("ps-0")
    assert first.wait() == 160, job.logs()
    assert first.ended["inPlaceRestarts"] == 3
    assert "not started again in place: chief-0 lost a peer, and ps-0 can't be heard" in first.log
    job.start("ps-0")
    job.start("chief-0")
    seconds_until(lambda: steps(job) > 0, job)
    assert "resuming after step" in job.chief.log
    kill_process(job, "worker-0")  # whose pod has another leader now
    assert ask(job.port)["inPlaceRestarts"] == 1

    job.chief.process.terminate()
    assert job.chief.wait() == 143, job.logs()
    saved = newest(output)
    assert saved is not None
    position = saved.state["position"]
    assert f"stopped by SIGTERM after step {position['step']}, saved" in job.chief.log
    # At least once: a step whose worker died after its update was taken again, and is counted.
    assert 0 <= iterations(output) - position["step"] <= 8
    print("recovery in seconds:", {name: round(took, 1) for name, took in seconds.items()})
    job.end()


@pytest.mark.deep
def test_whoever_freezes_is_found_by_its_own_pod(launch):
    """Before the chief gives up, which would not know for whom it has waited."""
    seconds = scaled(8)
    config = wide_and_deep(launch.directory / "frozen", epochs=100_000, watchdog={"stepSeconds": seconds})
    job = ServerJob(launch, config, workers=2, in_place=True)
    seconds_until(lambda: step_of(job.chief) > 100, job)
    kill_process(job, "worker-1", signal.SIGSTOP)
    assert started_again(job) == {"worker-1": 1}, job.logs()
    kill_process(job, "ps-0", signal.SIGSTOP)
    for name in ("worker-1", "ps-0"):
        assert "while serving: the process is frozen" in job.tasks[name].log
    assert "did not come back" not in job.chief.log
    assert ask(job.port)["inPlaceRestarts"] == 2
    job.end()


def steps(job: ServerJob) -> int:
    """Done so far; 0 while the chief does not answer."""
    return int(ask(job.port).get("step") or 0)


def started_again(job: ServerJob) -> dict[str, int]:
    found = {name: task.log.count("started again in place") for name, task in job.tasks.items()}
    return {name: times for name, times in found.items() if times}


def kill_process(job: ServerJob, name: str, number: int = signal.SIGKILL) -> float:
    """Kill it and wait until the job continues with it; returns the seconds."""
    task, chief = job.tasks[name], job.chief
    worker, resumed = task.log.count("asks for a first batch"), len(resumed_after(chief))
    job.kill_process(name, number)
    if name.startswith("worker"):
        return seconds_until(lambda: task.log.count("asks for a first batch") > worker, job)

    def goes_on() -> bool:
        # By a step: a second failure without one in between is not mended in place.
        return len(found := resumed_after(chief)) > resumed and steps(job) > found[-1]

    return seconds_until(goes_on, job)


def resumed_after(chief: Task) -> list[int]:
    """The steps after which its processes have gone on."""
    return [int(step) for step in re.findall(r"resuming after step (\d+)", chief.log)]


class Remote:
    """A result on a worker that is lost before the result is fetched, `times` times."""

    def __init__(self, number, losses):
        self.number, self.losses = number, losses

    def fetch(self):
        if self.losses.get(self.number, 0):
            self.losses[self.number] -= 1
            raise tf.errors.UnavailableError(None, None, "the worker is gone")
        return np.array([self.number])


def dispatcher(monkeypatch, losses):
    class Coordinator:
        def __init__(self, strategy):
            pass

        def schedule(self, function, args):
            return Remote(int(args[2]), losses)

    monkeypatch.setattr(tf.distribute.coordinator, "ClusterCoordinator", Coordinator)
    return Dispatcher(None, workers=1, deadline=30)


def test_a_batch_whose_result_is_lost_with_its_worker_is_given_to_another(monkeypatch):
    found = dispatcher(monkeypatch, {1: 1, 2: 2}).run(None, [(0, 0, number) for number in range(9)])
    assert [(place[2], int(result[0])) for place, result in found] == [(number, number) for number in range(9)]


SCALED = """
import keras
import numpy as np

class Scaled(keras.Model):
    factor = 1.0

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return self.factor * keras.ops.mean(keras.ops.square(y - y_pred))

class Scales(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.model.factor = 2.0 + epoch

keras.utils.set_random_seed(1)
inputs = keras.Input((3,))
model = Scaled(inputs, keras.layers.Dense(1)(inputs))
model.compile(keras.optimizers.SGD(0.1))
x = np.random.default_rng(1).normal(size=(8, 3)).astype("float32")
y = x[:, :1]
for first in (0, 2):
    model.fit(x, y, batch_size=4, initial_epoch=first, epochs=first + 1, shuffle=False, callbacks=[Scales()])
    model.factor = 7.0
np.save(__file__, model.get_weights()[0])
"""


@pytest.mark.deep
def test_python_values_count_when_keras_traces_the_step(launch, tmp_path, monkeypatch):
    """Also in a second fit() that does not trace it."""
    script = tmp_path / "scaled.py"
    script.write_text(SCALED)
    monkeypatch.setattr("tests.trainer.harness.MODULE", script)
    config = {"entrypoint": script.name, "output": {"directory": str(launch.directory / "scaled")}}
    job = ServerJob(launch, config, workers=1)
    assert job.chief.wait() == 0, job.logs()
    job.end()
    found = np.load(f"{script}.npy")
    runpy.run_path(str(script))
    np.testing.assert_allclose(found, np.load(f"{script}.npy"), atol=1e-6)


def test_who_can_never_be_reached_ends_the_run(monkeypatch):
    with pytest.raises(tf.errors.UnavailableError):
        list(dispatcher(monkeypatch, {1: 99}).run(None, [(0, 0, 0), (0, 0, 1)]))


@pytest.mark.deep
def test_a_worker_that_falls_silent_ends_the_chief_by_its_deadline(launch):
    """As when its node is lost: no connection is closed. The operator then starts the worker and the chief again."""
    seconds = scaled(4)
    config = wide_and_deep(launch.directory / "silent", epochs=100_000, watchdog={"stepSeconds": seconds})
    job = ServerJob(launch, config, workers=2)
    seconds_until(lambda: step_of(job.chief) > 100, job)
    silent = job.tasks["worker-1"].process.pid
    children = [int(pid) for pid in Path(f"/proc/{silent}/task/{silent}/children").read_text().split()]
    for pid in [silent, *children]:
        os.kill(pid, signal.SIGSTOP)
    assert job.chief.wait() == 160, job.logs()
    assert f"did not come back from any worker for {seconds} s" in job.chief.ended["message"]
    job.kill("worker-1")
    job.start("worker-1")
    job.start("chief-0")
    seconds_until(lambda: step_of(job.chief) > 0, job)
    job.end()


@pytest.mark.deep
def test_an_evaluator_follows_and_a_worker_that_never_comes_is_a_start_up_deadline(launch):
    output = launch.directory / "late"
    patient = wide_and_deep(output, epochs=1)
    # How long TensorFlow takes to start is another matter, so only the chief has a deadline that anything can miss.
    job = ServerJob(launch, patient, workers=1, absent=["worker-0", "chief-0"])
    job.config = wide_and_deep(output, epochs=1, watchdog={"startupSeconds": 12})
    job.start("chief-0")
    assert job.chief.wait() == 161, job.logs()
    assert job.chief.ended["cause"] == "StartupDeadline"
    job.config = patient
    job.start("worker-0")
    job.start("chief-0")
    assert job.chief.wait() == 0, job.logs()
    evaluator = launch.start(job.config, env={"TFGPU_STRATEGY": "ParameterServer", "TFGPU_REPLICA_TYPE": "evaluator"})
    assert evaluator.wait() == 0, evaluator.log
    assert "evaluated up to step 313" in evaluator.log
    job.end()


def test_a_worker_whose_data_differs_says_so_and_ends_with_2(launch):
    output = launch.directory / "differs"
    job = ServerJob(launch, wide_and_deep(output, epochs=1), workers=1, absent=["worker-0"])
    job.config = wide_and_deep(output, epochs=1, params={"rows": 1000})
    worker = job.start("worker-0")
    assert worker.wait() == 2, job.logs()
    assert worker.ended["message"] == "the rows to train on are others here than on the chief"
    job.end()
