"""The training processes of one pod: started together, stopped together, and one end for all. Imports no TensorFlow."""

from __future__ import annotations

import dataclasses
import math
import signal
import time
from collections.abc import Sequence

from tfgpujob_trainer.contract.exits import ExitCode, Outcome
from tfgpujob_trainer.supervise.supervisor import Supervisor

_POLL_SECONDS = 0.1
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


def run(processes: Sequence[Supervisor]) -> tuple[Outcome, Sequence[str]]:
    """Run all to their end; the end of the pod, and the last lines of the process that explains it."""
    for process in processes[1:]:
        process.mark = f"{process.name}| "
    launcher = _Launcher(processes)
    launcher.start()
    while launcher.running:
        launcher.running[0].wait(_POLL_SECONDS)
        launcher.look(time.monotonic())
    process, outcome = launcher.ends[root_cause([o for _, o in launcher.ends], told_to_stop=launcher.told_to_stop)]
    if len(processes) > 1 and outcome.code != ExitCode.DONE:
        outcome = dataclasses.replace(outcome, message=f"{process.name}: {outcome.message}")
    return outcome, process.last_lines


class _Launcher:
    """As soon as one process ends other than by success, the others are told to stop, and ended if they don't."""

    def __init__(self, processes: Sequence[Supervisor]) -> None:
        self.running = list(processes)
        self.ends: list[tuple[Supervisor, Outcome]] = []
        self.told_to_stop = False
        self._stopping, self._deadline = False, math.inf

    def start(self) -> None:
        for process in self.running:
            process.start()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def look(self, now: float) -> None:
        """Take note of whoever has ended by `now`, and act on it."""
        for process in list(self.running):
            outcome = process.poll()
            if outcome is not None:
                self.running.remove(process)
                self.ends.append((process, outcome))
                self._after(outcome, now)
        if now > self._deadline:
            # They hang because another has failed, which is what the pod ends with.
            for process in self.running:
                process.kill()
            self.running.clear()

    def _after(self, outcome: Outcome, now: float) -> None:
        if outcome.code not in (ExitCode.DONE, ExitCode.STOPPED):
            self._deadline = min(self._deadline, now + _STRAGGLERS_SECONDS)
        if outcome.code != ExitCode.DONE and not self._stopping:
            self._stopping = True
            self._signal(signal.SIGTERM)

    def _on_signal(self, number: int, _frame: object) -> None:
        self.told_to_stop = True
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
