"""The leader's rules where the gang has a spare pod."""

from __future__ import annotations

from tests.trainer.gangs import KILLED, PEER, STOPPED, ended

from tfgpujob_trainer.supervise.commands import End, Naming, Start, Stop
from tfgpujob_trainer.supervise.rounds import SILENT_SECONDS, Rounds


def with_spare(*come: str, least: int = 2) -> Rounds:
    """Two workers, and one spare pod."""
    rounds = Rounds(Naming().of(2), 6, Naming(), 3, least, 1)
    for name in Naming().of(2):
        assert rounds.joined(name, 0.0) is None
    for name in come:
        assert rounds.joined(name, 0.0, joins=True) is None, "nobody stops for a spare"
    return rounds


def test_a_spare_takes_the_place_of_a_lost_worker_whose_next_pod_is_the_spare():
    rounds = with_spare("worker-2")
    assert (rounds.here, rounds.without, rounds.members) == (3, (2,), ("worker-0", "worker-1"))
    assert ended(rounds, "worker-1", STOPPED) is None
    assert rounds.ended("worker-0", 0, End(STOPPED, progressed=True, saved=True), 0.0) == Start(1, None, 3, 1, (1,))
    assert rounds.members == ("worker-0", "worker-2")
    assert rounds.left("worker-1", 1.0) is None
    assert rounds.joined("worker-1", 5.0, joins=True) is None
    assert ended(rounds, "worker-2", KILLED, round_=1) == Stop(1)
    assert ended(rounds, "worker-0", PEER, round_=1) == Start(2, None, 3, 1, (1,)), "who trains already stays"


def test_a_spare_waits_until_the_processes_of_a_silent_pod_have_ended():
    rounds = with_spare("worker-2")
    assert rounds.left("worker-1", 0.0) == Stop(0)
    assert rounds.ended("worker-0", 0, End(PEER, progressed=True, in_memory=7), 1.0) is None
    assert rounds.waited(SILENT_SECONDS) is None
    assert rounds.waited(SILENT_SECONDS + 0.1) == Start(1, 7, 3, 1, (1,))


def test_a_failure_is_recovered_by_those_that_train_and_a_spare_that_goes_harms_nobody():
    rounds = with_spare("worker-2")
    assert rounds.left("worker-2", 0.0) is None
    assert ended(rounds, "worker-1", KILLED) == Stop(0)
    assert ended(rounds, "worker-0", PEER) == Start(1, None, 3, 0, (2,))
    assert rounds.resize(2) is None, "its number of workers is fixed"
    assert rounds.joined("worker-2", 9.0, joins=True) is None
