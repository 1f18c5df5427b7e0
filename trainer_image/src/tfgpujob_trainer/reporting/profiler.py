"""Profiles some steps of one worker with TensorFlow's profiler, for TensorBoard's Profile page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import tensorflow as tf

from tfgpujob_trainer.reporting.log import say


class Profiler:
    """Runs from before the first to after the last of `steps`. Its errors never end the training."""

    def __init__(self, steps: tuple[int, ...] | None, directory: Path) -> None:
        self._steps, self._directory = steps, directory
        self._running = False

    def before(self, step: int) -> None:
        """Start or stop before `step`, which is next."""
        if self._steps is None:
            return
        first, last = self._steps
        if not self._running and first <= step <= last:
            self._running = self._attempt(tf.profiler.experimental.start, str(self._directory))
        elif self._running and step > last:
            self.close()

    def close(self) -> None:
        """Write what was profiled so far, or report that none of the steps occurred."""
        if self._running:
            self._running = False
            if self._attempt(tf.profiler.experimental.stop):
                from tensorboard.summary.writer.event_file_writer import EventFileWriter  # noqa: PLC0415 (takes long)

                # TensorBoard looks for profiles beside event files.
                EventFileWriter(str(self._directory), filename_suffix=".profile-empty").close()
                say(f"profile written: tensorboard --logdir {self._directory.parent}")
        elif self._steps is not None:
            say(f"no profile: training here did not come to step {self._steps[0]}")
        self._steps = None

    def _attempt(self, action: Callable[..., None], *arguments: str) -> bool:
        try:
            action(*arguments)
        except tf.errors.OpError as error:
            say(f"no profile: {error.message}")
            self._steps = None
            return False
        return True
