"""Random draws of the model's layers: every replica draws its own, for its own rows."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.common import global_state  # Keras is pinned
from keras.src.random import seed_generator

from tfgpujob_trainer.contract.support import require
from tfgpujob_trainer.model.moving_statistics import few

_STRIDE = 1_000_003
"""Between the seeds of two replicas; a prime, so that no other layer's seed is likely to be that far away."""

_of_thread = seed_generator.global_seed_generator
_RATES = ("rate", "dropout", "recurrent_dropout")


class _Shared:
    """The generator behind `seed=None`, in place of Keras' own way to it, which has one for each thread.

    A replica is a thread, in which that of the script is missing, and in which none can be made.
    """

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        known = global_state.get_global_attribute(seed_generator.GLOBAL_SEED_GENERATOR)
        before = random.getstate()
        with strategy.scope():
            self.generator = known or keras.random.SeedGenerator()
        random.setstate(before)
        self._is_known, self.has_drawn = known is not None, False

    def __call__(self) -> keras.random.SeedGenerator:
        """The generator; Keras makes it when it is first asked for, with the next one of Python's random numbers."""
        self.has_drawn = True
        if not self._is_known:
            self._is_known = bool(seed_generator.make_default_seed())
        return self.generator

    def leave(self) -> None:
        """Go back to Keras' own way, which finds this one if it has been used."""
        seed_generator.global_seed_generator = _of_thread
        vars(self.generator).pop("next", None)
        if self._is_known:
            global_state.set_global_attribute(seed_generator.GLOBAL_SEED_GENERATOR, self.generator)


def draw_per_replica(model: keras.Model, strategy: tf.distribute.Strategy) -> None:
    """Let every SeedGenerator of the model give another seed to each replica.

    Their state is the same on all replicas, so without this all would draw the same Dropout mask. The first
    replica draws what a single device would.
    """
    seed_generator.global_seed_generator = shared = _Shared(strategy)
    for generator in [*_generators(model), shared.generator]:
        generator.next = _shifted(generator.next)


def draw_notes(model: keras.Model, strategy: str) -> list[str]:
    """What to say of layers that draw while they train, such as Dropout."""
    drawing = [layer.name for layer in model._flatten_layers() if _draws(layer)]  # noqa: SLF001
    return require("Dropout", strategy, few(drawing)) if drawing else []


def global_draw_notes(strategy: str) -> list[str]:
    """What to say of a step that has been traced, if it draws by `seed=None`."""
    shared = seed_generator.global_seed_generator
    drawn = isinstance(shared, _Shared) and shared.has_drawn
    return require("Dropout", strategy, "keras.random without a seed generator") if drawn else []


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
    for generator in _generators(model):
        vars(generator).pop("next", None)
    if isinstance(seed_generator.global_seed_generator, _Shared):
        seed_generator.global_seed_generator.leave()


def _generators(model: keras.Model) -> list[keras.random.SeedGenerator]:
    return [one for layer in model._flatten_layers() for one in layer._seed_generators]  # noqa: SLF001


def _shifted(original: Callable[..., Any]) -> Callable[..., Any]:
    def next_seed(ordered: bool = True) -> Any:
        seed = original(ordered=ordered)
        context = tf.distribute.get_replica_context()
        replica = 0 if context is None else tf.get_static_value(context.replica_id_in_sync_group)
        if not replica:
            return seed
        return seed + tf.constant([replica * _STRIDE, 0], seed.dtype)

    return next_seed
