"""The chief's rules for restarting processes in their pods under ParameterServer. Pure, without a clock.

Each process has its own rounds, and only those restart that must:

a worker   alone; the chief's coordinator gives its batch to another one, and uses it again when it answers
the chief  alone, from its newest in-memory checkpoint; the servers keep the variables of the previous one
a server   it and the chief, which has a copy of what the server held. The chief's process ends first: while it ran it
           would find a server without its variables, and might report that as an exception of the user's. The workers
           have nothing to do meanwhile and restart too, at no cost of the budget: an operation of TensorFlow on the
           lost server may never end, and later steps may wait for it
the chief, after it has waited in vain for a step: the workers too, one of which it waited for

The chief restarts once the processes of workers that end with it have ended: if it called them earlier, it would lose
them, and fail again. A chief that reports a lost peer waits for the server's report. Cases that these rules don't cover
end in GiveUp: that pod exits as its process did, and the operator decides as it does without rounds. A pod that is gone
and connects again has a new process, of unknown state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tfgpujob_contract.exit_codes import ExitCode
from tfgpujob_trainer.supervise.commands import Command, End, GiveUp, Start, Stop

LOST_SECONDS = 10.0
"""How long a chief that has lost a peer waits for a server's report that it failed, and how long a restarting chief
waits for the workers that end with it: an unreachable pod must not block it."""

Commands = Mapping[str, Command]
"""By the member that has to obey."""


@dataclass(slots=True)
class ServerRounds:
    """The state of the chief's supervisor. Each method takes an event and returns the resulting commands.

    `budget` is how many restarts in place are left from now on; times are seconds of one monotonic clock.
    """

    chief: str
    servers: frozenset[str]
    budget: int
    restarts: int = 0
    """Restarts in place so far: a server with its chief counts once."""
    over: GiveUp | None = None
    """The chief's pod ends."""
    _here: set[str] = field(default_factory=set)
    """Connected servers."""
    _workers: dict[str, int] = field(default_factory=dict)
    """Connected workers, and the rounds of their processes."""
    _told_to_end: set[str] = field(default_factory=set)
    """Workers whose process ends because of another's failure."""
    _lost: dict[str, int] = field(default_factory=dict)
    """Servers whose process has ended, and its round."""
    _round: int = 0
    """Round of the chief's process."""
    _ended: End | None = None
    """How the chief's process has ended, while it waits to restart."""
    _since: float = 0.0
    """When it ended."""
    _decided: bool = False
    """It restarts once the workers have ended."""
    _stopping: bool = False
    _begun_after_failure: set[str] = field(default_factory=set)
    """Members whose process is not the pod's first."""

    def joined(self, member: str, left: int | None = None, round_: int | None = None) -> Commands:
        """A worker's or a server's pod has connected. `left`: the restarts that were left when it was created;
        `round_`: that of its process; None: unknown."""
        self._begun_after_failure.discard(member)
        self._lost.pop(member, None)
        self._told_to_end.discard(member)
        if member in self.servers:
            self._here.add(member)
        elif round_ is not None:
            self._workers[member] = round_
        if left is not None:
            # The operator may have used some of them meanwhile.
            self.budget = min(self.budget, self.restarts + left)
        return self._start_if_alone()

    def gone(self, member: str) -> Commands:
        """A worker's or a server's pod is gone or unreachable."""
        self._here.discard(member)
        self._lost.pop(member, None)
        self._told_to_end.discard(member)
        self._workers.pop(member, None)
        if member in self.servers and self._ended is not None:
            return self._give_up(f"{member} has left")
        return self._start_if_alone()

    def ended(self, member: str, round_: int, end: End, now: float) -> Commands:
        """The process of a pod has ended, by itself or on a command."""
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
        return self._give_up(f"{self.chief} lost a peer, and no parameter server has failed")

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
            # During its first start it may have waited for a worker that still reads its data.
            return self._again(end, now, with_workers=True)
        if not lost_somebody or self._lost:
            return self._again(end, now)
        if missing := sorted(self.servers - self._here):
            return self._give_up(f"{self.chief} lost a peer, and {', '.join(missing)} can't be heard")
        self._ended, self._since = end, now
        return {}

    def _end_workers(self) -> Commands:
        """End the processes of workers that have not been asked to yet."""
        ending = {name: Stop(round_) for name, round_ in self._workers.items() if name not in self._told_to_end}
        self._told_to_end |= ending.keys()
        return ending

    def _again(self, end: End, now: float, *, with_workers: bool = False) -> Commands:
        """The chief's process has ended, and restarts once the processes that end with it have ended.

        If it gives up, the operator restarts the workers.
        """
        if (reason := self._refusal(self.chief, end)) is not None:
            return self._give_up(reason)
        self._spend(self.chief)
        self._ended, self._since, self._decided = end, now, True
        return {**(self._end_workers() if with_workers else {}), **self._start_if_alone()}

    def _start_if_alone(self) -> Commands:
        """Start it, unless the process of a worker has still to end."""
        return self._start() if self._decided and not self._told_to_end else {}

    def _start(self) -> Commands:
        """Start the chief's process, and those of the servers that it was ended for."""
        assert self._ended is not None
        self._round += 1
        told: dict[str, Command] = {self.chief: Start(self._round, self._ended.in_memory)}
        told |= {server: Start(round_ + 1) for server, round_ in self._lost.items()}
        self._lost.clear()
        self._ended, self._decided, self._stopping = None, False, False
        return told

    def _refusal(self, member: str, end: End) -> str | None:
        """Why the process that has ended is not restarted; None if it is."""
        if self.restarts >= self.budget:
            return f"{self.budget} restarts in place are all that runPolicy.backoffLimit leaves"
        if member in self._begun_after_failure and not end.progressed:
            return "a second failure without a step in between"
        return None

    def _spend(self, member: str) -> None:
        self.restarts += 1
        self._begun_after_failure.add(member)

    def _give_up(self, reason: str) -> Commands:
        """End the chief's pod, and those of the servers that wait for it."""
        self.over = GiveUp(reason)
        self._decided = False
        return {self.chief: self.over, **dict.fromkeys(self._lost, self.over)}
