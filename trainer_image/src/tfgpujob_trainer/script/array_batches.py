"""Arrays with a number of batches given to fit(): steps_per_epoch and validation_steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import tensorflow as tf

from tfgpujob_trainer.data.schedule import Schedule
from tfgpujob_trainer.data.sources import Indexed
from tfgpujob_trainer.data.sources.base import Rows
from tfgpujob_trainer.data.sources.batches import Batches, Extent


def array_batches(rows: Indexed, size: int, what: str, steps: int, *, trains: bool) -> Batches:
    """Batches of arrays, in which `steps` are an epoch or, if they are not trained on, all that count."""
    plan = Schedule(rows=rows.rows, global_batch_size=size, replicas=1, shuffle=trains, permute=rows.permute)
    passes = plan.steps_per_epoch
    last = rows.rows - (passes - 1) * size

    def read(number: int, first: int, seed: int) -> Iterator[Rows]:
        order = replace(plan, seed=seed).order(number)
        for batch in range(first, passes):
            yield rows.take(order[plan.bounds(batch)])

    length = passes if trains else min(steps, passes)
    extent = Extent(batches=length, size=min(size, rows.rows), last=last if length == passes else size)
    specs = tf.nest.map_structure(lambda a: tf.TensorSpec([None, *a.shape[1:]], a.dtype), rows.take(np.arange(1)))
    return Batches(read, extent, specs, what=what, steps=steps)
