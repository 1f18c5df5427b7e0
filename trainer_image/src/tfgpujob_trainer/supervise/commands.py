"""Messages between the members of a gang: the leader's commands, and how a member's processes ended. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from tfgpujob_contract.exit_codes import ExitCode

FIRST_RETRIED = 128


@dataclass(frozen=True, slots=True)
class End:
    """End of one member's processes: their exit code, and whether they completed a step in that round."""

    code: int
    progressed: bool
    in_memory: int | None = None
    """The step of the member's newest complete in-memory checkpoint, if any."""
    saved: bool = False
    """They stopped together after a saved step, and the pod itself was not asked to stop."""

    @property
    def worth_a_retry(self) -> bool:
        """By the contract of contract/exits.py; a requested stop is no failure, nor are peers that do not come."""
        return self.code >= FIRST_RETRIED and self.code not in (ExitCode.STOPPED, ExitCode.PEERS_MISSING)

    @property
    def leaves(self) -> bool:
        """They stopped because the pod is being stopped."""
        return self.code == ExitCode.STOPPED and not self.saved


@dataclass(frozen=True, slots=True)
class Brought:
    """What a member that has lost its leader brings to the next: its last round, and its in-memory checkpoint."""

    round: int = -1
    """-1: it was in none."""
    step: int | None = None
    since: int | None = None
    """The step that the round has started from, if that was in memory."""

    def accepts(self, other: Brought) -> bool:
        """True if this round, or what it has started from, is the one of the other's in-memory checkpoint."""
        if other.step is None or other.round == self.round:
            return other.step is not None
        return other.round == self.round - 1 and self.since is not None and other.step <= self.since


@dataclass(frozen=True, slots=True)
class Drain:
    """To all members: let the processes of this round stop after a step and save, and report their end."""

    round: int


@dataclass(frozen=True, slots=True)
class Stop:
    """To all members: end the processes of this round, and report their end."""

    round: int


@dataclass(frozen=True, slots=True)
class Send:
    """To all members: after the end of this round, `member` sends the leader its in-memory checkpoint of `step`."""

    round: int
    member: str
    step: int


@dataclass(frozen=True, slots=True)
class Start:
    """To all members: start the processes of this round, and delete in-memory checkpoints of steps after `step`, or all
    of them if it is None.

    A member that is not one of `workers` workers, or whose index is in `without`, leaves, or waits if it has not joined
    yet; if `workers` is None the members stay the same. `resizes` counts the rounds so far that changed the number of
    workers or replaced a lost pod; the others followed a failure. `leader` is how often the leader's pod was replaced:
    a member that has obeyed a leader obeys no earlier one.
    """

    round: int
    step: int | None = None
    workers: int | None = None
    resizes: int = 0
    without: tuple[int, ...] = ()
    leader: int = 0

    @property
    def restarts(self) -> int:
        """Number of rounds that followed a failure."""
        return self.round - self.resizes


@dataclass(frozen=True, slots=True)
class Leave:
    """To a member, derived from the start of a round that it is not in: end."""

    round: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """To all members: end with the exit codes of your processes."""

    reason: str


Command = Drain | Stop | Send | Start | Leave | GiveUp


@dataclass(frozen=True, slots=True)
class Naming:
    """Names of the members, each by its first process, the leader first. A chief's pod is not a worker."""

    chiefs: tuple[str, ...] = ()
    processes: int = 1
    """Processes of each pod."""

    def of(self, workers: int) -> tuple[str, ...]:
        """All members of a gang with this many worker pods."""
        return (*self.chiefs, *self.workers(workers))

    def workers(self, count: int) -> tuple[str, ...]:
        """The worker pods only."""
        return tuple(self.worker(index) for index in range(count))

    def worker(self, index: int) -> str:
        """The worker pod of this index."""
        return f"worker-{index * self.processes}"


class MemberState:
    """The last command to one member, and a start that it has not obeyed yet.

    A member that `joins` takes part from the first round on that includes it.
    """

    def __init__(self, member: str, naming: Naming | None = None, *, joins: bool = False) -> None:
        self.last: Command | None = None
        self._start: Start | None = None
        self._member, self._naming, self.takes_part = member, naming, not joins

    def take(self, command: Command) -> None:
        """Apply a new command. A round without this member is one that it leaves, or one that does not concern it."""
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
        """The command that applies to a member whose processes are in this round."""
        overtaken = self._start is None or self._start.round <= round_ or isinstance(self.last, GiveUp | Leave)
        return self.last if overtaken else self._start
