"""When the processes of a gang start again in their pods: the rules of the leader. Pure; no clock of its own.

A round is one start of all training processes of an attempt; round 0 is the pods' own. Once a process ends in a way
that is worth a retry, all are ended, and only when each member has said so does the next round begin: two rounds never
run at once, so no process meets another round's cluster, and none writes beside another. Whatever these rules don't
cover is given up: each pod then ends as its own process did, and the operator, which stays the judge, does what it
does without them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tfgpujob_trainer.contract.exits import ExitCode

PATIENCE_SECONDS = 30.0
"""How long the members may take to end their processes, before the leader gives up."""
_FIRST_RETRIED = 128


@dataclass(frozen=True, slots=True)
class End:
    """Of one member's processes: their exit code, and whether they have done a step in that round."""

    code: int
    progressed: bool

    @property
    def worth_a_retry(self) -> bool:
        """By the contract of contract/exits.py; a stop that was asked for is no failure."""
        return self.code >= _FIRST_RETRIED and self.code != ExitCode.STOPPED


@dataclass(frozen=True, slots=True)
class Stop:
    """To all members: end the processes of this round, and say so."""

    round: int


@dataclass(frozen=True, slots=True)
class Start:
    """To all members: start the processes of this round."""

    round: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """To all members: end as your processes did."""

    reason: str


Command = Stop | Start | GiveUp


@dataclass(slots=True)
class Rounds:
    """What the leader knows. Each method takes an event and returns what to tell all members, at most one command.

    `budget` is how many restarts in place the attempt may still spend; times are seconds of one monotonic clock.
    """

    members: Sequence[str]
    budget: int
    round: int = 0
    given_up: GiveUp | None = None
    _here: set[str] = field(default_factory=set)
    _ends: dict[str, int] = field(default_factory=dict)
    _progressed: set[int] = field(default_factory=set)
    _stopping_since: float | None = None

    def joined(self, member: str) -> Command | None:
        """A member has come; one of an earlier life of a pod can't be part of this attempt's rounds."""
        if self.given_up is not None:
            return self.given_up
        if member in self._here or member not in self.members:
            return self._give_up(f"{member} has come a second time")
        self._here.add(member)
        return None

    def left(self, member: str) -> Command | None:
        """A member's pod is gone or can't be reached: nobody can say that its processes have ended."""
        return self._give_up(f"{member} has left")

    def ended(self, member: str, round_: int, end: End, now: float) -> Command | None:
        """All processes of a member have ended, by themselves or because it was told to end them."""
        if self.given_up is not None or round_ != self.round:
            return self.given_up
        if end.progressed:
            self._progressed.add(round_)
        self._ends[member] = end.code
        if (reason := self._refusal(member, end)) is not None:
            return self._give_up(reason)
        if set(self._ends) == set(self.members):
            return None if end.code == ExitCode.DONE else self._next()
        if self._stopping_since is not None or end.code == ExitCode.DONE:
            return None
        self._stopping_since = now
        return Stop(self.round)

    def waited(self, now: float) -> Command | None:
        """Time has passed."""
        if self.given_up is not None or self._stopping_since is None:
            return None
        if now - self._stopping_since <= PATIENCE_SECONDS:
            return None
        missing = ", ".join(sorted(set(self.members) - set(self._ends)))
        return self._give_up(f"{missing} did not end within {PATIENCE_SECONDS:g} s")

    def _refusal(self, member: str, end: End) -> str | None:
        """Why no other round follows this end, if none does."""
        if end.code == ExitCode.DONE and self._stopping_since is None:
            return None
        done = [name for name, code in self._ends.items() if code == ExitCode.DONE]
        missing = set(self.members) - self._here
        looped = self._stopping_since is None and self.round and self.round not in self._progressed
        reasons = {
            f"{member} ended with code {end.code}": not end.worth_a_retry,
            f"{member} failed after {', '.join(sorted(done))} had finished": done,
            f"{', '.join(sorted(missing))} had not come yet": missing,
            f"{self.budget} restarts in place are all that runPolicy.backoffLimit leaves": self.round >= self.budget,
            "a second failure without a step in between": looped,
        }
        return next((reason for reason, holds in reasons.items() if holds), None)

    def _next(self) -> Start:
        """Nothing of this round runs any more."""
        self.round += 1
        self._ends.clear()
        self._stopping_since = None
        return Start(self.round)

    def _give_up(self, reason: str) -> GiveUp:
        self.given_up = self.given_up or GiveUp(reason)
        return self.given_up
