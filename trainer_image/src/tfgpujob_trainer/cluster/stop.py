"""SIGTERM as a wish to stop: all workers agree on it in the next step's all-reduce, and stop after the same step."""

from __future__ import annotations

import contextlib
import signal
from types import FrameType


class StopFlag:
    """Set by SIGTERM. The handler must be set after the strategy is built: TensorFlow replaces an earlier one."""

    def __init__(self) -> None:
        self.set = False

    def listen(self) -> None:
        """Handle SIGTERM from now on."""
        signal.signal(signal.SIGTERM, self._handle)

    def ignore(self) -> None:
        """The wish is known. Python handles none any more when it exits, and another SIGTERM would end it then."""
        with contextlib.suppress(ValueError):  # not in the main thread
            signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        self.set = True
