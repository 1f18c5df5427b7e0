"""Heartbeats of the training process to its supervisor, over a pipe: phase, step, what the time was spent on, and the
outcome."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Sequence
from typing import Any

from tfgpujob_contract import goodput, phases
from tfgpujob_contract.exit_codes import ExitCode
from tfgpujob_trainer.contract.exits import Outcome
from tfgpujob_trainer.reporting.ledger import Bookkeeper, Ledger
from tfgpujob_trainer.reporting.run_status import RunStatus

FD_VARIABLE = "TFGPU_TRAINER_HEARTBEAT_FD"
LEDGER_VARIABLE = "TFGPU_TRAINER_LEDGER"
MAX_NAMED = 8
"""Missing pods that are named in a report."""


class Heartbeat:
    """Writes JSON lines to a pipe; writes nothing when there is no supervisor."""

    def __init__(self, fd: int | None, account: Ledger | None = None) -> None:
        self._fd = fd
        self.run_status = RunStatus()
        self.ledger = account or Ledger(time.monotonic_ns())
        self._bookkeeper = Bookkeeper(self.ledger)
        self.of_another_fit = self._bookkeeper.of_another_fit
        self.run_status.ledger = lambda: self.ledger.report(time.monotonic_ns(), time.time())

    @classmethod
    def from_environment(cls) -> Heartbeat:
        """The pipe that the supervisor passed on."""
        fd, account = os.environ.get(FD_VARIABLE), os.environ.get(LEDGER_VARIABLE)
        return cls(int(fd) if fd else None, Ledger.from_json(account) if account else None)

    def beat(self, phase: str, step: int = 0) -> None:
        """Report the current phase; each heartbeat restarts the deadline of one step."""
        self.run_status.beat()
        self.run_status.update(phase=phase, **({"step": step} if step else {}))
        part = self._bookkeeper.beat(phase, step)
        self._send({"phase": phase, "step": step, **self._spent(part)})
        self.ledger.stepped(step)

    def waits_for(self, pods: Sequence[str]) -> None:
        """Report that these pods have not started yet; none: that they all have."""
        self.run_status.update(waitsFor=[*pods[:MAX_NAMED]] or None)
        self.beat(phases.PEERS if pods else phases.STARTING)

    def spent(self, part: str, following: str = goodput.BUILDING, mark: str = "") -> None:
        """Report that the time up to now was spent on `part`, and that what follows is `following`."""
        self._bookkeeper.ongoing = following
        record = self._spent(part)
        if mark:
            self.ledger.mark(mark, self.ledger.since)
            record["mark"] = mark
        self._send(record)

    def stoppable(self) -> None:
        """Report that SIGTERM is handled from now on."""
        self._send({"stoppable": True})

    def alive(self) -> None:
        """Report that this process still serves. Adds no time to the ledger."""
        self._send({"alive": True})

    def ended(self, outcome: Outcome) -> None:
        """Report how this process ends. Anything later, such as a crash at exit, does not count."""
        well = outcome.code in (ExitCode.DONE, ExitCode.STOPPED)
        spent = self._spent(self._bookkeeper.ongoing if well else goodput.LOST)
        self._send({"outcome": dataclasses.asdict(outcome), **spent})

    def _spent(self, part: str) -> dict[str, Any]:
        now, aside = time.monotonic_ns(), self.ledger.take_aside()
        self.ledger.spent(part, now, aside)
        return {"part": part, "at": now, **({"aside": aside} if aside else {})}

    def _send(self, record: dict[str, Any]) -> None:
        if self._fd is None:
            return
        try:
            os.write(self._fd, (json.dumps(record, default=str) + "\n").encode())
        except BrokenPipeError:
            # The supervisor is gone, and the kernel is about to kill this process. An exception would end the
            # interpreter first, and TensorFlow's server would meanwhile fail its steps with what looks like an error of
            # the user's.
            os._exit(ExitCode.FAILED)
