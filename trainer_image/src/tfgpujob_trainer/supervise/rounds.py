"""When the processes of a gang start again in their pods: the rules of the leader. Pure; no clock of its own.

A round is one start of all training processes of an attempt; round 0 is the pods' own. Once a process ends in a way
that is worth a retry, all are ended, and only when each member has said so does the next round begin: two rounds never
run at once, so no process meets another round's cluster, and none writes beside another. Whatever these rules don't
cover is given up: each pod then ends as its own process did, and the operator, which stays the judge, does what it
does without them.

A round goes on from the newest in-memory checkpoint of all members, which the leader's process restores and sends to
the others. If another member has a newer one than the leader, it sends that first. If it does not come, the round goes
on without it, and all forget what is newer than that: a state that the gang has left behind never comes back.
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
    in_memory: int | None = None
    """The step of the newest in-memory checkpoint of that member, if it has a whole one."""

    @property
    def worth_a_retry(self) -> bool:
        """By the contract of contract/exits.py; a stop that was asked for is no failure."""
        return self.code >= _FIRST_RETRIED and self.code != ExitCode.STOPPED


@dataclass(frozen=True, slots=True)
class Stop:
    """To all members: end the processes of this round, and say so."""

    round: int


@dataclass(frozen=True, slots=True)
class Send:
    """To all members: when this round has ended, `member` sends the leader its in-memory checkpoint of `step`."""

    round: int
    member: str
    step: int


@dataclass(frozen=True, slots=True)
class Start:
    """To all members: start the processes of this round, and forget in-memory checkpoints of later steps than `step`.

    Without a step: all of them.
    """

    round: int
    step: int | None = None


@dataclass(frozen=True, slots=True)
class GiveUp:
    """To all members: end as your processes did."""

    reason: str


Command = Stop | Send | Start | GiveUp


@dataclass(slots=True)
class Rounds:
    """What the leader knows. Each method takes an event and returns what to tell all members, at most one command.

    The leader is the first of `members`. `budget` is how many restarts in place the attempt may still spend; times are
    seconds of one monotonic clock.
    """

    members: Sequence[str]
    budget: int
    round: int = 0
    given_up: GiveUp | None = None
    _here: set[str] = field(default_factory=set)
    _ends: dict[str, int] = field(default_factory=dict)
    _progressed: set[int] = field(default_factory=set)
    _stopping_since: float | None = None
    _in_memory: dict[str, int] = field(default_factory=dict)
    """Of each member that has one, the step of its newest in-memory checkpoint, once its processes have ended."""
    _sending: Send | None = None
    _heard: float = 0.0
    """When something came of what is sent."""

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
        if end.in_memory is not None:
            self._in_memory[member] = end.in_memory
        if (reason := self._refusal(member, end)) is not None:
            return self._give_up(reason)
        if set(self._ends) == set(self.members):
            return None if end.code == ExitCode.DONE else self._next(now)
        if self._stopping_since is not None or end.code == ExitCode.DONE:
            return None
        self._stopping_since = now
        return Stop(self.round)

    def awaits(self, sending: Send, now: float) -> bool:
        """Something has come of what a member sends; whether it is still wanted."""
        if sending == self._sending:
            self._heard = now
        return sending == self._sending

    def sent(self, sending: Send, now: float, *, whole: bool) -> Command | None:
        """All of it has come, or it never will."""
        if self.given_up is not None or sending != self._sending:
            return self.given_up
        if whole:
            self._in_memory[self.members[0]] = sending.step
        else:
            del self._in_memory[sending.member]
        return self._next(now)

    def waited(self, now: float) -> Command | None:
        """Time has passed."""
        if self.given_up is not None:
            return None
        if self._sending is not None and now - self._heard > PATIENCE_SECONDS:
            return self.sent(self._sending, now, whole=False)
        if self._sending is not None or self._stopping_since is None:
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

    def _next(self, now: float) -> Send | Start:
        """Nothing of this round runs any more."""
        own = self._in_memory.get(self.members[0])
        member, newest = max(self._in_memory.items(), key=lambda item: item[1], default=("", None))
        if newest is not None and (own is None or newest > own):
            self._sending, self._heard = Send(self.round, member, newest), now
            return self._sending
        self.round += 1
        self._ends.clear()
        self._in_memory.clear()
        self._stopping_since = self._sending = None
        return Start(self.round, own)

    def _give_up(self, reason: str) -> GiveUp:
        self.given_up = self.given_up or GiveUp(reason)
        return self.given_up
