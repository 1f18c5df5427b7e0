"""Heartbeats of the training process to its supervisor, over a pipe: phase, step, and the outcome."""

from __future__ import annotations

import dataclasses
import json
import os
from typing import Any

from tfgpujob_trainer.contract.exits import Outcome
from tfgpujob_trainer.reporting.run_status import RunStatus

FD_VARIABLE = "TFGPU_TRAINER_HEARTBEAT_FD"


class Heartbeat:
    """Writes JSON lines to a pipe; writes nothing when there is no supervisor."""

    def __init__(self, fd: int | None) -> None:
        self._fd = fd
        self.run_status = RunStatus()

    @classmethod
    def from_environment(cls) -> Heartbeat:
        """The pipe that the supervisor handed over."""
        fd = os.environ.get(FD_VARIABLE)
        return cls(int(fd) if fd else None)

    def beat(self, phase: str, step: int = 0) -> None:
        """Say what is being done; each beat restarts the deadline of one step."""
        self.run_status.beat()
        self.run_status.update(phase=phase, **({"step": step} if step else {}))
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
