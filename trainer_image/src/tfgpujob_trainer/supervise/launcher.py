"""The training processes of one pod: started together, stopped together, and one end for all. Imports no TensorFlow.

Where the pods of a gang agree on it, they are started again in place (supervise/rounds.py).
"""

from __future__ import annotations

import dataclasses
import math
import signal
import time
from collections.abc import Callable, Sequence

from tfgpujob_trainer.checkpoints.memory_file import MemoryFile
from tfgpujob_trainer.contract.exits import ExitCode, Outcome
from tfgpujob_trainer.contract.text import ordinal
from tfgpujob_trainer.reporting.log import say
from tfgpujob_trainer.supervise.gang import Alone, Member
from tfgpujob_trainer.supervise.rounds import End, GiveUp, Start, Stop
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
_STRAGGLERS_SECONDS = 60.0
"""How long the others may take to end after one has failed: without it, no collective of theirs ends well."""


def shared_gpu(count: int, *, predicts: bool) -> str:
    """What is said at the start where `count` processes share a GPU, since sharing costs."""
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
    start: Callable[[int], Sequence[Supervisor]], member: Member | None = None, memory: MemoryFile | None = None
) -> tuple[Outcome, Sequence[str]]:
    """Run the processes that `start` makes of round 0 to their end, and of each round that `member` is told of.

    `memory` is where the first of them keeps its in-memory checkpoints. The end of the pod, and the last lines of the
    process that explains it.
    """
    launcher = _Launcher(member or Alone(), memory)
    while True:
        launcher.run(start(launcher.round))
        if not launcher.goes_on():
            outcome, last_lines = launcher.end()
            return dataclasses.replace(outcome, in_place_restarts=launcher.round), last_lines


class _Launcher:
    """As soon as one process ends other than by success, the others are told to stop, and ended if they don't."""

    def __init__(self, member: Member, memory: MemoryFile | None) -> None:
        self.round = 0
        self._member, self._memory = member, memory
        self._told_to_stop = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def run(self, processes: Sequence[Supervisor]) -> None:
        """Run the processes of one round to their end."""
        for process in processes[1:]:
            process.mark = f"{process.name}| "
        self._processes, self.running = processes, list(processes)
        self.ends: list[tuple[Supervisor, Outcome]] = []
        self._stopping, self._deadline = False, math.inf
        for process in processes:
            process.start()
        while self.running:
            self.running[0].wait(_POLL_SECONDS)
            self.look(time.monotonic())

    def look(self, now: float) -> None:
        """Take note of whoever has ended by `now`, and act on it."""
        for process in list(self.running):
            outcome = process.poll() if process in self.running else None
            if outcome is not None:
                self.running.remove(process)
                self.ends.append((process, outcome))
                self._after(outcome, now)
        if self._member.command() == Stop(self.round):
            self._end_all()
        if now > self._deadline:
            # They hang because another has failed, which is what the pod ends with.
            for process in self.running:
                process.kill()
            self.running.clear()

    def goes_on(self) -> bool:
        """Whether another round follows; waits until the members agree on it."""
        outcome, _ = self.end()
        code = ExitCode.STOPPED if self._told_to_stop and outcome.code else outcome.code
        progressed = any(process.progressed for process in self._processes)
        newest = None if self._memory is None else self._memory.newest()
        self._member.ended(self.round, End(int(code), progressed, None if newest is None else newest.step))
        while outcome.code != ExitCode.DONE and not self._told_to_stop:
            match self._member.command():
                case GiveUp(reason):
                    if self._member.speaks:
                        say(f"not started again in place: {reason}")
                    return False
                case Start(following, step) if following > self.round:
                    if self._memory is not None:
                        self._memory.keep(step)
                    say(f"started again in place, for the {ordinal(following)} time, after: {outcome.line()}")
                    self.round = following
                    return True
            time.sleep(_ANSWER_SECONDS)
        return False

    def end(self) -> tuple[Outcome, Sequence[str]]:
        """What explains the end of this round best."""
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
        """At once: the next round waits for it. Whoever has explained its end all the same is heard."""
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
    """Which of the ends, in the order in which they came, is the pod's: the first of the most specific ones.

    A peer's failure follows from another's, and so does a stop that nobody outside asked for.
    """
    consequences = (
        [ExitCode.STOPPED, ExitCode.PEER_FAILURE] if told_to_stop else [ExitCode.PEER_FAILURE, ExitCode.STOPPED]
    )
    ranks = {int(code): 1 + rank for rank, code in enumerate([*consequences, ExitCode.DONE])}
    return min(range(len(ends)), key=lambda i: (ranks.get(ends[i].code, 0), i))
