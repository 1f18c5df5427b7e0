"""The training processes of one pod, which start, stop and end together. Does not import TensorFlow.

If the pods of a gang agree on it, they are started again in place (supervise/rounds.py).
"""

from __future__ import annotations

import dataclasses
import math
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tfgpujob_contract.exit_codes import ExitCode
from tfgpujob_trainer.checkpoints.memory_file import MemoryFile
from tfgpujob_trainer.contract.exits import Outcome
from tfgpujob_trainer.contract.text import counted, ordinal
from tfgpujob_trainer.reporting.log import say
from tfgpujob_trainer.supervise.commands import FIRST_RETRIED, Drain, End, GiveUp, Leave, Start, Stop
from tfgpujob_trainer.supervise.member import Member
from tfgpujob_trainer.supervise.supervisor import Supervisor

_POLL_SECONDS = 0.1
_ANSWER_SECONDS = 0.02
_KILLED_SECONDS = 10.0
_ENDED_WITH_THE_GANG = Outcome(
    code=ExitCode.PEER_FAILURE,
    cause="PeerFailure",
    message="ended because another process of the gang had failed",
    fix="see the other workers' last lines; this end is retried",
)
_NEVER_JOINED = dataclasses.replace(_ENDED_WITH_THE_GANG, message="the gang that this pod was to join trains no more")
_STOPPED = Outcome(code=ExitCode.STOPPED, cause="Stopped", message="stopped by a signal before it joined the gang")
_LEFT = Outcome(code=ExitCode.STOPPED, cause="Stopped", message="left the gang, which continues with fewer workers")
_NONE_YET = Start(-1, resizes=-1)
"""The round of a pod that has not joined yet."""
_STRAGGLERS_SECONDS = 60.0
"""How long the others may take to end after one has failed: their collectives can't complete without it."""


def shared_gpu(count: int, *, predicts: bool) -> str:
    """Logged at the start if `count` processes share a GPU, because sharing has a cost."""
    costs = ["each holds a copy of the model and of TensorFlow", "they take turns unless the node runs MPS"]
    if not predicts:
        costs += [
            "the batch is split further",
            "gradients go through the host's memory, since NCCL refuses two ranks on one GPU",
        ]
    return (
        f"{count} processes share each GPU: {', '.join(costs)}; whether that pays: "
        "python -m tfgpujob_trainer.advise --config FILE"
    )


def run(
    start: Callable[[Start], Sequence[Supervisor]],
    member: Member | None = None,
    memory: MemoryFile | None = None,
    *,
    leave: Callable[[int], None] | None = None,
    joins: bool = False,
) -> tuple[Outcome, Sequence[str]]:
    """Run the processes that `start` returns for round 0 to their end, and those of each further round of `member`.

    `memory` has the in-memory checkpoints of the first process, and `leave` writes those of the last round; a member
    that joins has no round 0. Returns the end of the pod, and the last lines of the process that explains it.
    """
    launcher = _Launcher(member or Member(), memory, leave, _NONE_YET if joins else Start(0))
    goes_on = not joins or launcher.next_round()
    while goes_on:
        launcher.run(start(launcher.current))
        goes_on = launcher.goes_on()
    outcome, last_lines = launcher.end()
    return dataclasses.replace(outcome, in_place_restarts=launcher.restarts), last_lines


class _Launcher:
    """When one process fails, the others are asked to stop, and killed if they don't."""

    def __init__(
        self, member: Member, memory: MemoryFile | None, leave: Callable[[int], None] | None, first: Start
    ) -> None:
        self.current = first
        self.ends: list[tuple[Supervisor, Outcome]] = []
        self._processes: Sequence[Supervisor] = ()
        self.running: list[Supervisor] = []
        self._member, self._memory, self._leave = member, memory, leave
        self._told_to_stop = self._left = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    @property
    def restarts(self) -> int:
        """Restarts in place that this pod reports."""
        of_all = self._member.restarts()
        return self.current.restarts if of_all is None else of_all

    def run(self, processes: Sequence[Supervisor]) -> None:
        """Run the processes of one round to their end."""
        for process in processes[1:]:
            process.mark = f"{process.name}| "
        self._processes, self.running, self.ends = processes, list(processes), []
        self._stopping, self._draining, self._deadline = False, False, math.inf
        self._left_behind = False
        self._said: Mapping[str, Any] | None = None
        self._answered = 0
        for process in processes:
            process.start()
        while self.running:
            self.running[0].wait(_POLL_SECONDS)
            self.look(time.monotonic())

    def look(self, now: float) -> None:
        """Record which processes have ended by `now`, and act on it."""
        for process in list(self.running):
            outcome = process.poll() if process in self.running else None
            if outcome is not None:
                self.running.remove(process)
                self.ends.append((process, outcome))
                self._after(outcome, now)
        self._pass_on_resizes()
        match self._member.command(self.current.round):
            case Stop(round_) if round_ == self.current.round:
                self._end_all()
            case GiveUp() if not self._left_behind:
                # They may wait for a lost peer for longer than the pod has left to live.
                self._leave_memory()
            case Drain(round_) if round_ == self.current.round and not self._draining:
                self._draining = True
                for process in self.running:
                    process.drain()
        if now > self._deadline:
            # They hang because another one has failed, and its failure is the pod's.
            for process in self.running:
                process.kill()
            self.running.clear()

    def goes_on(self) -> bool:
        """True if another round follows; waits until the members agree on it."""
        outcome, _ = self.end()
        code = ExitCode.STOPPED if self._told_to_stop and outcome.code else outcome.code
        progressed = any(process.progressed for process in self._processes)
        newest = None if self._memory is None else self._memory.newest()
        explained = all(process.explained for process, _ in self.ends)
        saved = code == ExitCode.STOPPED and explained and not self._told_to_stop
        end = End(int(code), progressed, None if newest is None else newest.step, saved)
        self._member.ended(self.current.round, end)
        return outcome.code != ExitCode.DONE and self.next_round()

    def next_round(self) -> bool:
        """Wait for the next round; True if this pod is in it."""
        while not self._told_to_stop:
            match self._member.command(self.current.round):
                case GiveUp(reason):
                    if self._member.speaks:
                        say(f"not started {'again ' if self.ends else ''}in place: {reason}")
                    self._leave_memory()
                    return False
                case Leave():
                    self._left = True
                    return False
                case Start(round_) as following if round_ > self.current.round:
                    self._begin(following)
                    return True
            time.sleep(_ANSWER_SECONDS)
        self._leave_memory()
        return False

    def _leave_memory(self) -> None:
        """Not after a round that failed without a step, because the state that it started from may be the cause. Nor by
        a pod that has failed for good: its peers wait for its report, and writing a large copy takes longer."""
        self._left_behind = True
        sound = self._told_to_stop or any(process.progressed for process in self._processes)
        for_good = any(1 <= outcome.code < FIRST_RETRIED for _, outcome in self.ends)
        if self._leave is not None and sound and not for_good:
            self._leave(self.current.round)

    def _begin(self, following: Start) -> None:
        if self._memory is not None:
            self._memory.keep(following.step)
        outcome, _ = self.end()
        if self._processes and following.restarts > self.current.restarts:
            times = ordinal(following.restarts)
            say(f"started again in place, for the {times} time, after: {outcome.line()}")
        said = self.current.workers, self.current.resizes
        if following.workers is not None and (following.workers, following.resizes) != said:
            absent = "".join(f", without worker-{index}" for index in following.without)
            say(f"round {following.round} has {counted(following.workers - len(following.without), 'worker')}{absent}")
        self.current = following

    def _pass_on_resizes(self) -> None:
        """Pass requests for another number of workers from the training process, which serves them, to the leader."""
        requests = self._processes[0].resizes
        if requests is None:
            return
        if (asked := requests.newest()) is not None:
            self._member.resize(int(asked["workers"]))
            self._answered = int(asked["request"])
        said = {"gang": self._member.gang(), "answered": self._answered}
        if (restarts := self._member.restarts()) is not None:
            said["inPlaceRestarts"] = restarts
        if said != self._said and requests.send(said):
            self._said = said

    def end(self) -> tuple[Outcome, Sequence[str]]:
        """The outcome that explains the end of this round best."""
        if self._left:
            return _LEFT, ()
        if not self._processes:
            return (_STOPPED if self._told_to_stop else _NEVER_JOINED), ()
        if not self.ends:
            return _ENDED_WITH_THE_GANG, ()
        process, outcome = self.ends[root_cause([o for _, o in self.ends], told_to_stop=self._told_to_stop)]
        if len(self._processes) > 1 and outcome.code != ExitCode.DONE:
            outcome = dataclasses.replace(outcome, message=f"{process.name}: {outcome.message}")
        return outcome, process.last_lines

    def _after(self, outcome: Outcome, now: float) -> None:
        if outcome.code not in (ExitCode.DONE, ExitCode.STOPPED):
            self._deadline = min(self._deadline, now + _STRAGGLERS_SECONDS)
        if outcome.code != ExitCode.DONE and not self._stopping:
            self._stopping = True
            if self._member.speaks and End(int(outcome.code), progressed=False).worth_a_retry:
                self._end_all()
            else:
                self._signal(signal.SIGTERM)

    def _end_all(self) -> None:
        """At once, because the next round waits for it. Outcomes that were reported before are kept."""
        for process in self.running:
            process.kill()
        for process in self.running:
            process.wait(_KILLED_SECONDS)
            outcome = process.poll()
            if outcome is not None and process.explained:
                self.ends.append((process, outcome))
        self.running.clear()

    def _on_signal(self, number: int, _frame: object) -> None:
        self._told_to_stop = True
        self._signal(number)

    def _signal(self, number: int) -> None:
        for process in self.running:
            process.signal(number)


def root_cause(ends: Sequence[Outcome], *, told_to_stop: bool) -> int:
    """The index of the pod's outcome among those of its processes, in order of time: the first of the most specific
    ones.

    The failure of a peer is a consequence, and so is a stop that was not requested from outside.
    """
    consequences = (
        [ExitCode.STOPPED, ExitCode.PEER_FAILURE] if told_to_stop else [ExitCode.PEER_FAILURE, ExitCode.STOPPED]
    )
    ranks = {int(code): 1 + rank for rank, code in enumerate([*consequences, ExitCode.DONE])}
    return min(range(len(ends)), key=lambda i: (ranks.get(ends[i].code, 0), i))
