"""Whose process starts again in its pod under ParameterServer: the rules of the chief's supervisor. Pure; no clock.

Each process has rounds of its own, and who must start again does, and nobody else:

a worker   alone; the chief's coordinator gives its batch to another one, and takes it back when it answers again
the chief  alone, from its newest in-memory checkpoint; the servers keep the variables of the one before it
a server   it and the chief, which has a copy of what the server held. The chief's process ends first: one that still
           ran would find a server without its variables, and might call that an exception of the user's. The workers
           have nothing to do meanwhile and start again too, at no cost of the budget: what TensorFlow has under way
           with a server that is lost may never end, and later steps may wait for it
the chief, which has waited in vain for a step: the workers too, one of which it waited for

The chief starts again once the processes of workers that end with it have ended: one that called them while they
still ran would lose them, and end for it. A chief that says that it lost somebody waits for the server to say so.
Whatever these rules don't cover is given up: that pod then ends as its process did, and the operator, which stays the
judge, does what it does without them. Pods come and go: one that has gone and comes back has a new process, of which
nothing is known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tfgpujob_trainer.contract.exits import ExitCode
from tfgpujob_trainer.supervise.commands import Command, End, GiveUp, Start, Stop

LOST_SECONDS = 10.0
"""How long a chief that has lost somebody waits until a server says that it was the one, and one that starts again for
the workers that end with it: a pod that can't be reached does not hold it back."""

Commands = Mapping[str, Command]
"""By the member that is to obey each."""


@dataclass(slots=True)
class ServerRounds:
    """What the chief's supervisor knows. Each method takes an event and returns the commands that follow.

    `budget` is how many restarts in place may be spent from here on; times are seconds of one monotonic clock.
    """

    chief: str
    servers: frozenset[str]
    budget: int
    restarts: int = 0
    """How many of them are spent: a server and its chief are one."""
    over: GiveUp | None = None
    """The chief's pod ends."""
    _here: set[str] = field(default_factory=set)
    """Servers that are connected."""
    _workers: dict[str, int] = field(default_factory=dict)
    """The workers that are connected and have said so, and the rounds of their processes."""
    _told_to_end: set[str] = field(default_factory=set)
    """Workers whose process ends for another's sake."""
    _lost: dict[str, int] = field(default_factory=dict)
    """The servers whose process has ended, and the round that it was of."""
    _round: int = 0
    """That of the chief's process."""
    _ended: End | None = None
    """How the chief's process has ended, while it waits."""
    _since: float = 0.0
    """When it has."""
    _decided: bool = False
    """It starts again, and waits for no more than the ends of workers."""
    _stopping: bool = False
    _begun_after_failure: set[str] = field(default_factory=set)
    """Whose process is not the pod's first."""

    def joined(self, member: str, left: int | None = None, round_: int | None = None) -> Commands:
        """A worker's or a server's pod has come, which was told that so many restarts were left when it was created,
        and whose process is that of this round; None: it does not say."""
        self._begun_after_failure.discard(member)
        self._lost.pop(member, None)
        self._told_to_end.discard(member)
        if member in self.servers:
            self._here.add(member)
        elif round_ is not None:
            self._workers[member] = round_
        if left is not None:
            # The operator may have spent some of them meanwhile.
            self.budget = min(self.budget, self.restarts + left)
        return self._start_if_alone()

    def gone(self, member: str) -> Commands:
        """A worker's or a server's pod is gone, or can't be reached."""
        self._here.discard(member)
        self._lost.pop(member, None)
        self._told_to_end.discard(member)
        self._workers.pop(member, None)
        if member in self.servers and self._ended is not None:
            return self._give_up(f"{member} has left")
        return self._start_if_alone()

    def ended(self, member: str, round_: int, end: End, now: float) -> Commands:
        """The process of a pod has ended, by itself or because it was told to end it."""
        if self.over is not None and member not in self._told_to_end:
            return {member: self.over}
        if member == self.chief:
            return self._chief_ended(end, now)
        if not end.worth_a_retry:
            return {member: GiveUp(f"{member} ended with code {end.code}")}
        if member in self.servers:
            return self._server_ended(member, round_, now)
        told: Commands = {}
        if member in self._told_to_end:
            self._told_to_end.remove(member)
            told = self._start_if_alone()
        elif (reason := self._refusal(member, end)) is not None:
            return {member: GiveUp(reason)}
        else:
            self._spend(member)
        if member in self._workers:
            self._workers[member] = round_ + 1
        return {member: Start(round_ + 1), **told}

    def waited(self, now: float) -> Commands:
        """Time has passed."""
        if self._ended is None or now - self._since <= LOST_SECONDS:
            return {}
        if self._decided:
            return self._start()
        return self._give_up(f"{self.chief} lost somebody, and no parameter server has failed")

    def _server_ended(self, member: str, round_: int, now: float) -> Commands:
        self._lost[member] = round_
        if self._decided:
            return self._end_workers()
        if self._ended is not None:
            return self._again(self._ended, now, with_workers=True)
        if self._stopping:
            return self._end_workers()
        self._stopping = True
        return {self.chief: Stop(self._round), **self._end_workers()}

    def _chief_ended(self, end: End, now: float) -> Commands:
        if end.code == ExitCode.DONE:
            self.over = GiveUp(f"{self.chief} has finished")
            return dict.fromkeys(self._lost, self.over)
        lost_somebody = end.code == ExitCode.PEER_FAILURE
        if not end.worth_a_retry:
            return self._give_up(f"{self.chief} ended with code {end.code}")
        if end.code == ExitCode.WATCHDOG and (end.progressed or self._round > 0):
            # In its first start it may have waited for a worker that still reads its data.
            return self._again(end, now, with_workers=True)
        if not lost_somebody or self._lost:
            return self._again(end, now)
        if missing := sorted(self.servers - self._here):
            return self._give_up(f"{self.chief} lost somebody, and {', '.join(missing)} can't be heard")
        self._ended, self._since = end, now
        return {}

    def _end_workers(self) -> Commands:
        """Of those whose process has not been told so yet."""
        ending = {name: Stop(round_) for name, round_ in self._workers.items() if name not in self._told_to_end}
        self._told_to_end |= ending.keys()
        return ending

    def _again(self, end: End, now: float, *, with_workers: bool = False) -> Commands:
        """The chief's process has ended and starts again as soon as those that end with it have.

        If it gives up, it is the operator who starts the workers again.
        """
        if (reason := self._refusal(self.chief, end)) is not None:
            return self._give_up(reason)
        self._spend(self.chief)
        self._ended, self._since, self._decided = end, now, True
        return {**(self._end_workers() if with_workers else {}), **self._start_if_alone()}

    def _start_if_alone(self) -> Commands:
        """Unless the process of a worker that ends has not yet."""
        return self._start() if self._decided and not self._told_to_end else {}

    def _start(self) -> Commands:
        """The chief's process, and with it those of the servers that it was ended for, if any."""
        assert self._ended is not None
        self._round += 1
        told: dict[str, Command] = {self.chief: Start(self._round, self._ended.in_memory)}
        told |= {server: Start(round_ + 1) for server, round_ in self._lost.items()}
        self._lost.clear()
        self._ended, self._decided, self._stopping = None, False, False
        return told

    def _refusal(self, member: str, end: End) -> str | None:
        """Why the process that has ended is not started again, if it is not."""
        if self.restarts >= self.budget:
            return f"{self.budget} restarts in place are all that runPolicy.backoffLimit leaves"
        if member in self._begun_after_failure and not end.progressed:
            return "a second failure without a step in between"
        return None

    def _spend(self, member: str) -> None:
        self.restarts += 1
        self._begun_after_failure.add(member)

    def _give_up(self, reason: str) -> Commands:
        """The chief's pod ends, and those of the servers that wait for it."""
        self.over = GiveUp(reason)
        self._decided = False
        return {self.chief: self.over, **dict.fromkeys(self._lost, self.over)}
