"""SIGTERM as a request to stop: all workers agree on it in the next step's all-reduce, and stop after the same step."""

from __future__ import annotations

import contextlib
import signal
from types import FrameType


class StopFlag:
    """Set by SIGTERM. Install the handler after the strategy is built, because TensorFlow replaces an earlier one."""

    def __init__(self) -> None:
        self.set = False

    def listen(self) -> None:
        """Handle SIGTERM from now on."""
        signal.signal(signal.SIGTERM, self._handle)

    def ignore(self) -> None:
        """The request is known. Python handles no signal while it exits, and another SIGTERM would kill it then."""
        with contextlib.suppress(ValueError):  # not in the main thread
            signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        self.set = True
