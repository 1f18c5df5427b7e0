"""What TensorBoard shows of a run: scalars of training and evaluation, by step."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import tensorflow as tf


class Scalars:
    """Writes event files; one process writes them, since all know the same numbers."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._writers: dict[str, tf.summary.SummaryWriter] = {}

    def write(self, split: str, step: int, values: Mapping[str, float]) -> None:
        """Add the values of `train` or `validation` at `step`; readers see them when this returns."""
        if split not in self._writers:
            self._writers[split] = tf.summary.create_file_writer(str(self._directory / split))
        writer = self._writers[split]
        # The epochs' and the replicas' graphs have nothing to do with it, wherever this is called from.
        with tf.init_scope(), writer.as_default():
            for name, value in values.items():
                tf.summary.scalar(name, value, step=step)
        writer.flush()
