"""All workers have the same weights: they begin with the chief's, and the job ends if theirs differ later."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from ml_dtypes import finfo

from tfgpujob_trainer.cluster.peers import Peers
from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.model.variables import local_value, values_digest
from tfgpujob_trainer.reporting.log import say

_NAMED = 3
"""Number of differing weights that are named."""


def take_the_chiefs(variables: Sequence[Any], peers: Peers) -> None:
    """Assign the chief's values on every worker, if any worker has others: of a random number of its own, say."""
    if peers.workers == 1 or not peers.differing(values_digest(variables)):
        return
    sizes = [local_value(variable).nbytes for variable in variables]
    parts = peers.broadcast_parts_from_chief(sizes, lambda index: local_value(variables[index]).tobytes())
    for variable, part in zip(variables, parts, strict=True):
        variable.assign(np.frombuffer(part, local_value(variable).dtype).reshape(variable.shape))


def agree_on_weights(model: keras.Model, peers: Peers, step: int) -> str:
    """The digest of the weights; raises ConfigError on every worker if they differ by more than rounding.

    Each worker applies the same sums to the same weights. But some operations, such as the gradient of an embedding,
    don't give the same bits on every GPU.
    """
    digest = values_digest(model.weights)
    if not peers.differing(digest):
        return digest
    different = [variable.path for variable in model.weights if _differs(local_value(variable), peers)]
    if not different:
        say(f"the workers' weights differ in their last digits after step {step}")
        return digest
    peers.barrier_before_exit()
    more = f" and {len(different) - _NAMED} more" if len(different) > _NAMED else ""
    raise ConfigError(
        f"the workers' weights differ after step {step}: {', '.join(different[:_NAMED])}{more}",
        "let every worker do the same with the model: give all of them the same callbacks, and let no layer, callback "
        "or train_step() set weights from what one worker alone has",
    )


def _differs(mine: np.ndarray, peers: Peers) -> bool:
    """True if this weight differs from the chief's on some worker."""
    chiefs = np.frombuffer(peers.broadcast_from_chief(mine.tobytes()), mine.dtype).reshape(mine.shape)
    return peers.count(not _equal(mine, chiefs)) > 0


def _equal(mine: np.ndarray, other: np.ndarray) -> bool:
    """True if they agree in half of their digits, relative to the largest value."""
    try:
        rounding: Any = finfo(mine.dtype).eps
    except ValueError:  # not floating-point numbers
        return np.array_equal(mine, other)
    mine, other = mine.astype(np.float64), other.astype(np.float64)
    largest = np.max(np.abs(other), initial=0.0, where=np.isfinite(other))
    return np.allclose(mine, other, rtol=0.0, atol=float(rounding) ** 0.5 * largest, equal_nan=True)
