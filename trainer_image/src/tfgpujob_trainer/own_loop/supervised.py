"""What a program reports to the supervisor that has started it: its status, that it handles SIGTERM, and an
exception.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from tfgpujob_contract.phases import STARTING
from tfgpujob_trainer.contract.exits import classify
from tfgpujob_trainer.reporting.heartbeat import FD_VARIABLE
from tfgpujob_trainer.reporting.run_status import RunStatus


class SupervisedStatus(RunStatus):
    """A status that is sent at each update over the pipe of reporting/heartbeat.py."""

    def __init__(self, descriptor: int, *, has_peers: bool) -> None:
        super().__init__()
        self._descriptor, self._has_peers = descriptor, has_peers
        os.set_inheritable(descriptor, False)
        self._report_exception, sys.excepthook = sys.excepthook, self._explain
        self.update(phase=STARTING)

    def update(self, **known: Any) -> None:
        """Update the status, and send it."""
        super().update(**known)
        phase, _ = self.silence()
        self._tell({"status": known, "phase": phase, "step": known.get("step") or 0})

    def add_point(self, split: str, step: int, values: Mapping[str, Any]) -> None:
        """Send it: the supervisor keeps the curves over all rounds."""
        self._tell({"point": [split, step, values]})

    def stoppable(self) -> None:
        """SIGTERM is handled from now on."""
        self._tell({"stoppable": True})

    def _explain(self, kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        """Report an uncaught exception. What follows it, such as a crash at exit, does not count."""
        self._report_exception(kind, error, traceback)
        self._tell({"outcome": dataclasses.asdict(classify(error, has_peers=self._has_peers))})

    def _tell(self, record: dict[str, Any]) -> None:
        os.write(self._descriptor, (json.dumps(record, default=str) + "\n").encode())


def new_status(*, has_peers: bool) -> RunStatus:
    """This process's status, which is sent to its supervisor if it has one."""
    descriptor = os.environ.pop(FD_VARIABLE, "")  # the pipe is for this process, not for one that it starts
    return RunStatus() if not descriptor else SupervisedStatus(int(descriptor), has_peers=has_peers)
