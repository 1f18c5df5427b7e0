"""From what `data(split)` returned to a source of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfgpujob_contract.trainer_config import Data
from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.contract.text import did_you_mean
from tfgpujob_trainer.data.sources import files
from tfgpujob_trainer.data.sources.arrays import arrays
from tfgpujob_trainer.data.sources.base import Indexed, Rows, Source, batched, leaves
from tfgpujob_trainer.data.sources.cached import MEMORY, Beat, Cached, read_once
from tfgpujob_trainer.data.sources.csv_files import CSV
from tfgpujob_trainer.data.sources.parquet_files import PARQUET
from tfgpujob_trainer.data.sources.stream import stream
from tfgpujob_trainer.data.sources.tables import table

_KEYS = {
    "tfrecord": ("tfrecord", "parse", "augment"),
    "images": ("images", "size", "channels", "classes", "augment"),
    "csv": ("csv", "label", "columns", "text", "classes", "augment"),
    "parquet": ("parquet", "label", "columns", "classes", "augment"),
}
_TABLES = {"csv": CSV, "parquet": PARQUET}
TRAIN = "train"


def source(
    value: Any,
    split: str,
    settings: Data | None = None,
    *,
    global_batch_size: int = 1,
    reopen: Callable[[], Any] | None = None,
    beat: Beat = lambda: None,
) -> Source:
    """Read what `data(split)` returned: arrays, a dict of arrays, an unbatched dataset, a generator, declared files.

    `reopen` calls data(split) again, since a generator can be read only once. Raises ConfigError for anything else.
    """
    if isinstance(value, Source):
        return value
    settings = settings or Data()
    what, endless = f"data({split!r})", settings.steps_per_epoch if split == TRAIN else None
    is_stream = isinstance(value, (tf.data.Dataset, Iterator)) or callable(value)
    if is_stream:
        return _stream(
            value,
            what,
            settings,
            trains=split == TRAIN,
            steps_per_epoch=endless,
            global_batch_size=global_batch_size,
            reopen=reopen or (lambda: value),
            beat=beat,
        )
    if endless is not None:
        raise ConfigError(
            "trainer.data.stepsPerEpoch is set, but data('train') has an end", "remove it: an epoch is all rows once"
        )
    kind = next((key for key in _KEYS if isinstance(value, Mapping) and key in value), None)
    if kind is None:
        return arrays(value, what)
    return _declared(value, kind, what, settings, trains=split == TRAIN)


def _declared(declared: Mapping[str, Any], kind: str, what: str, settings: Data, *, trains: bool) -> Indexed:
    for key in declared:
        if key not in _KEYS[kind]:
            raise ConfigError(f"{what} has {kind!r} with the key {key!r}", did_you_mean(str(key), _KEYS[kind]))
    found: Indexed
    if kind in _TABLES:
        found = table(declared, kind, what, _TABLES[kind])
    else:
        is_images = kind == "images"
        found = files.images(declared, what) if is_images else files.records(declared, what, settings.shuffle_window)
        if settings.cache != "none":
            found = Cached(found, settings.cache)
    if trains and "augment" in declared:
        found.augment = _augmentation(declared["augment"], found, what)
    return found


def _stream(
    value: Any,
    what: str,
    settings: Data,
    *,
    trains: bool,
    steps_per_epoch: int | None,
    global_batch_size: int,
    reopen: Callable[[], Any],
    beat: Beat,
) -> Source:
    # Evaluation reads its rows again and again, and needs all of them.
    short = not trains and not isinstance(value, tf.data.Dataset)
    kind = MEMORY if short and settings.cache == "none" else settings.cache
    found = stream(
        value,
        what,
        reopen=reopen,
        window=settings.shuffle_window,
        rows_if_endless=None if steps_per_epoch is None else steps_per_epoch * global_batch_size,
        read_once=kind != "none",
    )
    return found if kind == "none" else read_once(found, kind, beat)


def _augmentation(function: Any, of: Indexed, what: str) -> Callable[[Rows, np.ndarray], Rows]:
    if not callable(function):
        raise ConfigError(f"{what}: 'augment' is no function", "write def augment(x, y, seed)")
    specs = tf.nest.map_structure(lambda a: tf.TensorSpec(a.shape[1:], a.dtype), of.take(np.arange(1)))
    many = batched(function, *specs, tf.TensorSpec([2], tf.int32), what=what, name="augment()")

    def augment(rows: Rows, seeds: np.ndarray) -> Rows:
        changed: Rows = many(*rows, seeds)
        assert len(leaves(changed)[0]) == len(seeds)
        return changed

    return augment
