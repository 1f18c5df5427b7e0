"""What the members of a gang say to each other: what a leader tells, and how a member's processes have ended. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from tfgpujob_trainer.contract.exits import ExitCode

FIRST_RETRIED = 128


@dataclass(frozen=True, slots=True)
class End:
    """Of one member's processes: their exit code, and whether they have done a step in that round."""

    code: int
    progressed: bool
    in_memory: int | None = None
    """The step of the newest in-memory checkpoint of that member, if it has a whole one."""
    saved: bool = False
    """They stopped together after a step that is in storage, and nobody wants to stop the pod."""

    @property
    def worth_a_retry(self) -> bool:
        """By the contract of contract/exits.py; a stop that was asked for is no failure."""
        return self.code >= FIRST_RETRIED and self.code != ExitCode.STOPPED

    @property
    def leaves(self) -> bool:
        """They stopped since the pod is told to stop: it is about to be gone."""
        return self.code == ExitCode.STOPPED and not self.saved


@dataclass(frozen=True, slots=True)
class Drain:
    """To all members: let the processes of this round stop after a step and save, and say so."""

    round: int


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

    Without a step: all of them. Whoever is none of so many `workers`, or has one of the indexes `without`, leaves, or
    waits if it has not joined yet; without a number nothing changes. `resizes` of the rounds so far were begun for
    other workers, or with another pod in the place of a lost one; the others after a failure.
    """

    round: int
    step: int | None = None
    workers: int | None = None
    resizes: int = 0
    without: tuple[int, ...] = ()

    @property
    def restarts(self) -> int:
        """How many rounds were begun after a failure."""
        return self.round - self.resizes


@dataclass(frozen=True, slots=True)
class Leave:
    """To a member, made of the start of a round that it has no part in: end."""

    round: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """To all members: end as your processes did."""

    reason: str
    at_once: bool = False
    """Those that still run are ended."""


Command = Drain | Stop | Send | Start | Leave | GiveUp


@dataclass(frozen=True, slots=True)
class Naming:
    """What the members are called, each by its first process: the leader comes first. A chief's pod is no worker."""

    chiefs: tuple[str, ...] = ()
    processes: int = 1
    """Of each pod."""

    def of(self, workers: int) -> tuple[str, ...]:
        """All members where there are so many worker pods."""
        return (*self.chiefs, *self.workers(workers))

    def workers(self, count: int) -> tuple[str, ...]:
        """The worker pods alone."""
        return tuple(self.worker(index) for index in range(count))

    def worker(self, index: int) -> str:
        """The worker pod of this index."""
        return f"worker-{index * self.processes}"


class MemberState:
    """The last command to one member, and a start that it has yet to obey, which the last command may have followed.

    A member that `joins` takes part from the first round on that has it among its members.
    """

    def __init__(self, member: str, naming: Naming | None = None, *, joins: bool = False) -> None:
        self.last: Command | None = None
        self._start: Start | None = None
        self._member, self._naming, self.takes_part = member, naming, not joins

    def take(self, command: Command) -> None:
        """Something new; a round without this member is one that it leaves, or that is nothing to it."""
        if isinstance(self.last, Leave):
            return
        if isinstance(command, Start) and command.workers is not None and self._naming is not None:
            absent = {self._naming.worker(index) for index in command.without}
            if self._member in {*self._naming.of(command.workers)} - absent:
                self.takes_part = True
            elif self.takes_part:
                command = Leave(command.round)
            else:
                return
        self.last = command
        if isinstance(command, Start):
            self._start = command

    def in_round(self, round_: int) -> Command | None:
        """What counts for a member whose processes are those of this round."""
        overtaken = self._start is None or self._start.round <= round_ or isinstance(self.last, GiveUp | Leave)
        return self.last if overtaken else self._start
