"""What TensorBoard shows of a run: scalars of training and evaluation, by step.

Written from numbers alone, without tf.summary: at the first use of an operation the chief of ParameterServer sends
every worker of it and waits for all answers, so that a worker's silence would hold it here.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfgpujob_trainer.reporting.numbers import one_number

if TYPE_CHECKING:
    from tensorboard.summary.writer.event_file_writer import EventFileWriter


class Scalars:
    """Writes event files; one process writes them, since all know the same numbers."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._writers: dict[str, EventFileWriter] = {}

    def write(self, split: str, step: int, values: Mapping[str, Any]) -> None:
        """Add the values of `train` or `validation` at `step`; readers see them when this returns."""
        # Imported here, after the first steps, and by the one process that writes: it takes 2 % of a start.
        from tensorboard.compat.proto.event_pb2 import Event  # noqa: PLC0415
        from tensorboard.plugins.scalar.summary_v2 import scalar_pb  # noqa: PLC0415
        from tensorboard.summary.writer.event_file_writer import EventFileWriter  # noqa: PLC0415

        if split not in self._writers:
            self._writers[split] = EventFileWriter(str(self._directory / split))
        writer = self._writers[split]
        for name, value in values.items():
            writer.add_event(Event(wall_time=time.time(), step=step, summary=scalar_pb(name, one_number(value))))
        writer.flush()

    def close(self) -> None:
        """Close the files; a writer has a thread, too, and a script may call fit() many times."""
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()
