"""Pods of a gang that are lost in the worst moments, worker 0 among them: equal weights, or a clear end in words."""

from __future__ import annotations

import signal

import pytest
from tests.machine import scaled
from tests.recovery.pods import Gang
from tests.small_disk import fill, small_disk
from tests.trainer.harness import until

pytestmark = pytest.mark.deep


@pytest.fixture(scope="module")
def undisturbed(launch) -> str:
    gang = Gang(launch, "undisturbed")
    assert gang.codes() == [0, 0, 0], gang.log
    return gang.weights


def trains_on(gang: Gang, undisturbed: str) -> None:
    assert gang.codes() == [0, 0, 0], gang.log
    assert gang.resumed, gang.log
    assert gang.weights == undisturbed


def test_two_at_once(launch, undisturbed):
    gang = Gang(launch, "two", claim=False)
    until(lambda: gang.step > 8)
    gang.lose(0, 2)
    gang.replace(0, 2)
    trains_on(gang, undisturbed)


def test_the_replacement_while_it_takes_the_state(launch, undisturbed):
    gang = Gang(launch, "replacement", claim=False)
    until(lambda: gang.step > 8)
    for _ in range(2):
        gang.lose(0)
        gang.replace(0)
        gang.pods[0].wait_for("has 3 workers")
    trains_on(gang, undisturbed)


def test_in_the_middle_of_a_save(launch, undisturbed):
    gang = Gang(launch, "save", checkpoint={"everySteps": 1})
    until(lambda: gang.step > 8)
    saves = gang.output(0) / "checkpoints"
    until(lambda: any(not (save / "COMMIT").exists() for save in saves.glob("step-*")), every=0.001)
    gang.lose(0)
    gang.replace(0)
    trains_on(gang, undisturbed)


def test_a_worker_that_stands_still(launch):
    """Its kernel answers for it, so it is not lost, and can't be replaced beside the others."""
    gang = frozen(launch, "worker", 1)
    gang.pods[0].wait_for("not started again in place: worker-1 did not end within 30 s")
    gang.signal(1, signal.SIGCONT)
    assert {*gang.codes()} <= {160, 161}, gang.log
    assert "not started again in place: worker-1 did not end within 30 s" in gang.pods[1].log


def test_a_leader_that_stands_still(launch, undisturbed):
    gang = frozen(launch, "leader", 0)
    for pod in gang.pods[1:]:
        pod.wait_for("no answer from the other workers")
    gang.signal(0, signal.SIGCONT)
    trains_on(gang, undisturbed)


def frozen(launch, name: str, index: int) -> Gang:
    gang = Gang(launch, name, watchdog={"stepSeconds": scaled(5)})
    until(lambda: gang.step > 8)
    gang.signal(index, signal.SIGSTOP)
    return gang


def test_beside_a_full_disk(launch):
    with small_disk(launch.directory / "full", "4m") as disk:
        gang = Gang(launch, "full")
        until(lambda: gang.step > 8)
        fill(disk)
        gang.lose(1)
        gang.replace(1)
        assert gang.codes()[0] == 1, gang.log
        assert gang.pods[0].ended["cause"] == "DiskFull"
        assert "the disk is full" in gang.pods[0].log
