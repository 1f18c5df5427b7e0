"""Aborts a collective that waits for a stalled peer, after stepSeconds without a heartbeat.

TensorFlow's own `CommunicationOptions(timeout_seconds=...)` keeps a sleeping thread for each collective until its
timeout, so that a job with many steps runs out of threads (docs/adr/0021-collective-deadline.md). Here one thread in
each process checks the heartbeat instead. After stepSeconds without one it aborts all collectives. A worker that waits
in one gets DeadlineExceededError, a peer's failure; the worker that is stuck elsewhere stays silent until its
supervisor's watchdog ends it and prints its stacks.
"""

from __future__ import annotations

import threading
import time

import tensorflow as tf
from tensorflow.python.eager import context

from tfgpujob_trainer.reporting.phases import UNTIMED, grace_seconds
from tfgpujob_trainer.reporting.run_status import RunStatus

_MARGIN_SECONDS = 2.0
"""Time that the watchdog of the stalled worker needs, beyond its grace, to detect and end it."""


class CollectiveDeadline:
    """A thread that aborts this process's collectives after `step_seconds` of silence. Does so at most once."""

    def __init__(self, run_status: RunStatus, step_seconds: float) -> None:
        self._run_status, self._step_seconds = run_status, step_seconds
        self._aborted_at: float | None = None

    def start(self) -> None:
        """Start the thread."""
        threading.Thread(target=self._watch, name="collective-deadline", daemon=True).start()

    def _watch(self) -> None:
        while True:
            phase, silent = self._run_status.silence()
            if phase not in UNTIMED and silent >= self._step_seconds:
                break
            time.sleep(max(0.1, min(1.0, self._step_seconds - silent)))
        self._aborted_at = time.monotonic()
        message = f"no answer from the other workers for {silent:.0f} s (trainer.watchdog.stepSeconds)"
        context.context().abort_collective_ops(tf.errors.DEADLINE_EXCEEDED, message)

    def leave_after_the_stalled(self) -> None:
        """Let the watchdog of the stalled worker act first: TensorFlow ends a worker whose peer has left."""
        if self._aborted_at is not None:
            left = grace_seconds(self._step_seconds) + _MARGIN_SECONDS - (time.monotonic() - self._aborted_at)
            time.sleep(max(0.0, left))
