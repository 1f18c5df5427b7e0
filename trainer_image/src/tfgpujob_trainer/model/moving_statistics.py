"""Moving statistics, such as BatchNormalization's: state that each replica would update in its own way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfgpujob_trainer.contract.support import require

_SHOWN = 3


def moving_statistics(model: keras.Model) -> list[Any]:
    """State that Keras' own layers change while they train, such as BatchNormalization's moving mean.

    Every replica sees other rows, so these are averaged in the step's all-reduce, or the workers'
    weights would drift apart. Those of other layers mean what their author says: step/layer_states.py.
    """
    found: list[Any] = []
    for layer in model._flatten_layers():  # noqa: SLF001
        if layer.trainable and not is_of_author(layer):
            found += [v for v in layer._non_trainable_variables if tf.as_dtype(v.dtype).is_floating]  # noqa: SLF001
    metrics = {id(v) for v in model.metrics_variables}
    return [v for v in found if id(v) not in metrics]


def is_of_author(layer: keras.Layer) -> bool:
    """Whether it is none of Keras' own layers, and no BatchNormalization of another name."""
    return not type(layer).__module__.startswith("keras.") and not isinstance(layer, keras.layers.BatchNormalization)


class Statistics:
    """The mean of the replicas' moving statistics, of those that had rows."""

    def __init__(self, variables: Sequence[Any]) -> None:
        self.variables = variables

    def of_step(self, weight: Any) -> list[Any]:
        """In a replica: what is to be summed; `weight` is 1, or 0 without rows, or None for the only replica."""
        values = [tf.convert_to_tensor(v.value) for v in self.variables]
        if weight is None or not values:
            return values
        return [*(v * tf.cast(weight, v.dtype) for v in values), tf.cast(weight, values[0].dtype)]

    def assign(self, sums: Sequence[Any]) -> None:
        """In a replica: the mean from the sums over all of them."""
        replicas = sums[len(self.variables) :]
        for variable, total in zip(self.variables, sums, strict=False):
            variable.assign(total / tf.cast(replicas[0], total.dtype) if replicas else total)


def synchronized_normalizations(model: keras.Model) -> list[str]:
    """Names of the BatchNormalization layers that train with the statistics of all replicas."""
    found = (one for one in model._flatten_layers() if isinstance(one, keras.layers.BatchNormalization))  # noqa: SLF001
    return [layer.name for layer in found if layer.trainable and layer.synchronized]


def batch_normalization_notes(names: Sequence[str], strategy: str, accumulate: int, *, synchronized: bool) -> list[str]:
    """What to say about such layers; raises ConfigError where they would fail."""
    technique = ("synchronized " if synchronized else "") + "BatchNormalization"
    technique += " with accumulation" if accumulate > 1 else ""
    return require(technique, strategy, few(names)) if names else []


def few(names: Sequence[str]) -> str:
    """Deep networks have dozens: the first few show the kind."""
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
