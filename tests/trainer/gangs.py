"""Gangs for the tests of the leader's rules (supervise/rounds.py)."""

from __future__ import annotations

from tfgpujob_trainer.supervise.commands import Command, End, Naming
from tfgpujob_trainer.supervise.rounds import Rounds

KILLED, PEER, RAISED, STOPPED, DONE = 137, 160, 1, 143, 0
SAVED = End(STOPPED, True, saved=True)
LEAVES = End(STOPPED, True)


def gang(*names: str, budget: int = 6) -> Rounds:
    rounds = Rounds(names or ("worker-0", "worker-1"), budget)
    for name in rounds.members:
        assert rounds.joined(name, 0.0) is None
    return rounds


def ended(rounds: Rounds, member: str, code: int, *, round_: int = 0, progressed: bool = True, now: float = 0.0):
    return rounds.ended(member, round_, End(code, progressed), now)


def resizable(workers: int = 2, *, come: int = 0, budget: int = 6, least: int | None = None) -> Rounds:
    """A gang of this many connected workers, with `come` more that wait to join."""
    rounds = Rounds(Naming().of(workers), budget, Naming(), workers, least)
    for name in Naming().of(workers + come):
        assert rounds.joined(name, 0.0) is None
    return rounds


def drained(rounds: Rounds, *, now: float = 0.0, step: int | None = None) -> list[Command | None]:
    """What follows when each member stops as it was told, in their order."""
    end = End(STOPPED, True, step, saved=True)
    return [rounds.ended(name, rounds.round, end, now) for name in list(rounds.members)]
