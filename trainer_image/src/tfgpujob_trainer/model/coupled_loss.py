"""Finds losses that couple the rows of a batch, such as those with in-batch negatives.

Each replica, and each micro-batch, computes the loss of its own rows. For most losses these add up to the loss of the
whole batch. Where one row's loss depends on the others they do not, and what is trained depends on how many parts there
are. So some rows' loss is held against that of their halves, once, before the first step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.contract.support import require
from tfgpujob_trainer.model.batch import unpack
from tfgpujob_trainer.model.loss import LossParts, grouped
from tfgpujob_trainer.model.variables import state_kept

ROWS = 8
"""How many rows are looked at: two halves of four."""
_TOLERANCE = {"float16": 0.05, "bfloat16": 0.05, "float64": 1e-10}
"""By what fraction sums may differ because they were rounded; otherwise `_EXACT`. Libraries compute 8 rows otherwise
than 4, and many layers add that up.

Before the first step all rows have nearly the same loss: one that is divided by how many of their tokens count differs
by little more than that.
"""
_EXACT = 1e-4


def check_coupled_loss(
    model: keras.Model, loss: LossParts, rows: Any, *, accumulate: int, strategy: str, allowed: bool
) -> list[str]:
    """What to say of a loss that couples rows, nothing of any other.

    Without dropout and with BatchNormalization's moving statistics, since these are not the loss's. Raises ConfigError
    if such a loss is to be accumulated and that is not `allowed`.
    """
    count = len(tf.nest.flatten(rows)[0])
    if count < 2:
        return []
    with loss.unmeasured(), state_kept(model), _all_digits():
        whole, halves = _means(model, loss, rows, count)
    if not math.isfinite(whole + halves) or is_near(model, whole, halves):
        return []
    found = f"the loss of {count} rows is {whole:.7g}, and {halves:.7g} in halves"
    if accumulate > 1 and not allowed:
        raise ConfigError(
            f"trainer.accumulate is {accumulate}, and the loss couples the rows of a batch: {found}",
            "set accumulate to 1, or allowCoupledLoss: true if a micro-batch is a batch to this loss",
        )
    notes = require("a loss that couples rows", strategy, f"the loss ({found})")
    return (
        notes if accumulate == 1 else [*notes, f"allowCoupledLoss: {accumulate} micro-batches, each with its own loss"]
    )


def is_near(model: keras.Model, whole: float, halves: float) -> bool:
    """Whether these losses of the same rows are equal, but for rounding."""
    tolerance = _TOLERANCE.get(model.compute_dtype, _EXACT)
    return math.isclose(whole, halves, rel_tol=tolerance, abs_tol=min(tolerance, 1e-6))


@contextmanager
def _all_digits() -> Iterator[None]:
    """GPUs otherwise multiply with 10 bits, which differ between batches of 8 rows and of 4."""
    before = tf.config.experimental.tensor_float_32_execution_enabled()
    tf.config.experimental.enable_tensor_float_32_execution(False)
    try:
        yield
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(before)


def _means(model: keras.Model, loss: LossParts, rows: Any, count: int) -> tuple[float, float]:
    """The loss of the rows, and what their halves' sums make of it."""
    middle = count // 2
    whole = _sums(model, loss, rows, slice(0, count))
    halves = [_sums(model, loss, rows, part) for part in (slice(0, middle), slice(middle, count))]
    return _mean(whole), _mean([a + b for a, b in zip(*halves, strict=True)])


def _sums(model: keras.Model, loss: LossParts, rows: Any, part: slice) -> list[np.ndarray]:
    """(numerator, normaliser) of each part of these rows' loss."""
    batch = unpack(tf.nest.map_structure(lambda array: array[part], rows))
    y_pred = model(batch[0], training=False)
    groups = grouped(loss(batch, y_pred, training=False)).values()
    return [np.array([float(n), math.nan if d is None else float(d)]) for n, d in groups]


def _mean(sums: Sequence[np.ndarray]) -> float:
    """As `mean_loss`: a sum without a normaliser counts as it is."""
    return sum(float(n) if math.isnan(d) else float(n / d) if d else 0.0 for n, d in sums)
