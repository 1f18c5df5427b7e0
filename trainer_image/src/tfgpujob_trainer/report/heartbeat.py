"""The line from the training process to its supervisor: phases, steps, and how it ended."""

from __future__ import annotations

import dataclasses
import json
import os
from typing import Any

from tfgpujob_trainer.contract.exits import Outcome
from tfgpujob_trainer.report.run_status import Scoreboard

STARTING = "starting"
CACHING = "caching"
TRAINING = "training"
EVALUATING = "evaluating"
SAVING = "saving"
PREDICTING = "predicting"
EXPORTING = "exporting"
WAITING = "waiting"
"""An evaluator between two checkpoints, for as long as the training takes."""

SERVING = "serving"
"""A worker or parameter server under ParameterServer: it does what the chief asks of it, for as long as that takes."""

UNTIMED = (STARTING, WAITING, SERVING)
"""Phases in which silence for stepSeconds means nothing: start-up has a deadline of its own, the others have none."""

FD_VARIABLE = "TFGPU_TRAINER_HEARTBEAT_FD"


def grace_seconds(step_seconds: float) -> float:
    """How much longer than stepSeconds a process may be silent before it is ended.

    Within it, a worker that only waits for a stalled peer leaves its collective (cluster/collective_deadline.py). So
    whoever is silent for longer is the one that is stuck.
    """
    return min(5.0, 0.2 * step_seconds)


class Heartbeat:
    """Writes JSON lines to a pipe; writes nothing when there is no supervisor."""

    def __init__(self, fd: int | None) -> None:
        self._fd = fd
        self.scoreboard = Scoreboard()

    @classmethod
    def from_environment(cls) -> Heartbeat:
        """The pipe that the supervisor handed over."""
        fd = os.environ.get(FD_VARIABLE)
        return cls(int(fd) if fd else None)

    def beat(self, phase: str, step: int = 0) -> None:
        """Say what is being done; each beat restarts the deadline of one step."""
        self.scoreboard.beat()
        self.scoreboard.update(phase=phase, **({"step": step} if step else {}))
        self._send({"phase": phase, "step": step})

    def stoppable(self) -> None:
        """Say that SIGTERM is handled from now on."""
        self._send({"stoppable": True})

    def ended(self, outcome: Outcome) -> None:
        """Say how this process ends. What follows it, such as a crash while exiting, does not count."""
        self._send({"outcome": dataclasses.asdict(outcome)})

    def _send(self, record: dict[str, Any]) -> None:
        if self._fd is not None:
            os.write(self._fd, (json.dumps(record, default=str) + "\n").encode())
