"""Workers that join and leave a ParameterServer job while it trains, with real processes: the others keep running."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread

import pytest
from tests.machine import is_within
from tests.trainer.harness import ask, until
from tests.trainer.servers import ServerJob

from tfgpujob_contract.pod import MAX_REPLICAS
from tfgpujob_trainer.cluster.elastic_workers import possible_addresses
from tfgpujob_trainer.contract import environment

EPOCH = "tfgpu-train: epoch "
GAP_SECONDS = 1.0
"""The longest for which no step may be done, on a quiet machine."""


@contextmanager
def longest_gap(job: ServerJob) -> Iterator[Callable[[], float]]:
    """Watches the steps meanwhile: the longest time, in seconds, for which none was done."""
    over, longest = Event(), [0.0]

    def watch() -> None:
        step, since = 0, time.monotonic()
        while not over.wait(0.02):
            found, now = int(ask(job.port).get("step") or 0), time.monotonic()
            if found > step:
                longest[0], step, since = max(longest[0], now - since), found, now

    watcher = Thread(target=watch)
    watcher.start()
    try:
        yield lambda: longest[0]
    finally:
        over.set()
        watcher.join()


def asked(job: ServerJob, name: str) -> bool:
    return "asks for a first batch" in job.tasks[name].log


def wait_until(condition: Callable[[], bool], job: ServerJob) -> None:
    until(lambda: condition() or job.chief.process.poll() is not None)
    assert condition() and job.chief.process.poll() is None, job.logs()


@pytest.mark.deep
def test_workers_join_and_leave_and_nobody_stops(launch):
    """Two of four start; a third joins; one is asked to stop; one is killed, and comes back in another process."""
    config = {
        "entrypoint": "wide_and_deep",
        "globalBatchSize": 128,
        "logEverySeconds": 1,
        "epochs": 100_000,
        "checkpoint": {"everySteps": 100_000},
        "output": {"directory": str(launch.directory / "output")},
    }
    job = ServerJob(launch, config, workers=4, servers=2, least=2, absent=("worker-1", "worker-2"))
    wait_until(lambda: int(ask(job.port).get("step") or 0) > 100, job)
    with longest_gap(job) as gap:
        job.start("worker-1")
        wait_until(lambda: asked(job, "worker-1"), job)
        assert "worker-1 joined; workers that train: 3" in job.chief.log

        # Between two of its steps: no batch is computed in part, and none twice.
        job.tasks["worker-0"].process.terminate()
        assert job.tasks["worker-0"].wait() == 143
        wait_until(lambda: "worker-0 left; workers that train on: 2" in job.chief.log, job)
        ended = job.chief.log.count(EPOCH)  # with each epoch the chief counts the steps that were taken
        wait_until(lambda: job.chief.log.count(EPOCH) > ended, job)
        assert "taken twice" not in job.chief.log

        job.kill("worker-3")
        wait_until(lambda: "worker-3 left; workers that train on: 1" in job.chief.log, job)
        # Not in the order in which they were lost, which TensorFlow's coordinator would wait for.
        job.start("worker-3")
        wait_until(lambda: asked(job, "worker-3"), job)
    assert is_within(gap(), GAP_SECONDS), job.chief.log
    print(f"the longest time without a step: {gap():.2f} s")

    job.chief.process.terminate()
    assert job.chief.wait() == 143, job.logs()
    job.end()


@pytest.mark.deep
def test_a_chief_waits_for_the_fewest_workers_and_says_so(launch):
    config = {"entrypoint": "wide_and_deep", "globalBatchSize": 128, "epochs": 1, "params": {}}
    config["output"] = {"directory": str(launch.directory / "waits")}
    job = ServerJob(launch, config, workers=2, least=2, absent=("worker-1",))
    job.chief.wait_for("waiting for 1 of at least 2 workers")
    job.start("worker-1")
    assert job.chief.wait() == 0, job.logs()
    summary = job.chief.ended["summary"]
    assert (summary["examples"], summary["repeatedSteps"]) == (40000, 0)
    job.end()


def chief(workers: list[str]) -> environment.Environment:
    cluster = {"chief": ["train-chief-0.train:2222"], "ps": ["train-ps-0.train:2222"], "worker": workers}
    told = {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "chief", "index": 0}})}
    return environment.read({**told, "TFGPU_WORKERS_MIN": "1"})


def test_a_chief_knows_where_workers_may_come_to_be():
    first, second, *_, last = found = possible_addresses(chief(["train-worker-0.train:2222"]))
    assert (first, second, last) == tuple(f"train-worker-{index}.train:2222" for index in (0, 1, MAX_REPLICAS - 1))
    assert len(found) == MAX_REPLICAS
    odd = ["10.0.0.7:2222"]
    assert possible_addresses(chief(odd)) == tuple(odd)


def test_only_a_chief_is_told_of_workers_that_come_and_go():
    cluster = {"worker": {"0": "w:1"}, "ps": ["p:1"]}
    told = {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 0}})}
    assert environment.read({**told, "TFGPU_WORKERS_MIN": "3"}).least_workers is None
