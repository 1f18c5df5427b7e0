"""Random draws of the model's layers: every replica draws its own, for its own rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfgpujob_trainer.contract.support import require
from tfgpujob_trainer.model.moving_statistics import few

_STRIDE = 1_000_003
"""Between the seeds of two replicas; a prime, so that no other layer's seed is likely to be that far away."""

_RATES = ("rate", "dropout", "recurrent_dropout")


def draw_per_replica(model: keras.Model) -> None:
    """Let every SeedGenerator of the model give another seed to each replica.

    Their state is the same on all replicas, so without this all would draw the same Dropout mask. The first
    replica draws what a single device would.
    """
    for layer in model._flatten_layers():  # noqa: SLF001
        for generator in layer._seed_generators:  # noqa: SLF001
            generator.next = _shifted(generator.next)


def draw_notes(model: keras.Model, strategy: str) -> list[str]:
    """What to say of layers that draw while they train, such as Dropout."""
    drawing = [layer.name for layer in model._flatten_layers() if _draws(layer)]  # noqa: SLF001
    return require("Dropout", strategy, few(drawing)) if drawing else []


def _draws(layer: keras.Layer) -> bool:
    """Dropout(0) and an LSTM without dropout have a generator too, and draw nothing."""
    if any(isinstance(held, tf.random.Generator) for held in vars(layer).values()):
        return True
    rates = [getattr(layer, name) for name in _RATES if hasattr(layer, name)]
    return bool(layer._seed_generators) and (not rates or any(rates))  # noqa: SLF001


def let_first_replica_draw_alike() -> None:
    """Let a tf.random.Generator draw in the first replica what it draws on a single device; in the others as ever."""
    original = tf.random.Generator._preprocess_key  # noqa: SLF001 (TensorFlow is pinned)

    def preprocess(self: tf.random.Generator, key: Any) -> Any:
        context = tf.distribute.get_replica_context()
        replica = None if context is None else tf.get_static_value(context.replica_id_in_sync_group)
        return key if replica == 0 else original(self, key)

    tf.random.Generator._preprocess_key = preprocess  # noqa: SLF001


def draw_as_compiled(model: keras.Model) -> None:
    """Take back what draw_per_replica did."""
    for layer in model._flatten_layers():  # noqa: SLF001
        for generator in layer._seed_generators:  # noqa: SLF001
            vars(generator).pop("next", None)


def _shifted(original: Callable[..., Any]) -> Callable[..., Any]:
    def next_seed(ordered: bool = True) -> Any:
        seed = original(ordered=ordered)
        context = tf.distribute.get_replica_context()
        replica = 0 if context is None else tf.get_static_value(context.replica_id_in_sync_group)
        if not replica:
            return seed
        return seed + tf.constant([replica * _STRIDE, 0], seed.dtype)

    return next_seed
