"""A tf.data.Dataset that a script has batched, and perhaps shuffled: its rows, and how they were to be batched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tfgpujob_trainer.contract.exits import ConfigError

_PASSED = ("_PrefetchDataset", "_OptionsDataset")
"""What changes no row and no batch."""
_BATCHES = ("_BatchDataset", "_ParallelBatchDataset")


@dataclass(frozen=True, slots=True)
class Batched:
    """A dataset of single rows; `window` rows are shuffled among each other, 1 if none are."""

    rows: Any
    batch_size: int
    window: int
    drops: bool


def unbatched(dataset: Any, what: str) -> Batched:
    """Look below prefetch(), batch() and shuffle(), in this order from the end; ConfigError without a batch()."""
    size, window, drops = 0, 1, False
    while True:
        kind = type(dataset).__name__
        if kind in _BATCHES and not size:
            size, drops = int(dataset._batch_size), bool(dataset._drop_remainder)  # noqa: SLF001 (TensorFlow is pinned)
        elif kind == "_ShuffleDataset" and size and window == 1:
            window = int(dataset._buffer_size)  # noqa: SLF001
        elif kind not in _PASSED:
            break
        dataset = dataset._input_dataset  # noqa: SLF001
    if not size:
        raise ConfigError(
            f"{what} is a tf.data.Dataset that does not end with batch(), so that its rows cannot be seen",
            "let batch() come last, or only prefetch() after it: map() single rows before it",
        )
    return Batched(dataset, size, window, drops)
