"""The layers that a fit() trains: those that were trainable in the first one since compile(), as in Keras.

Keras builds its step function in the first fit(), and drops it in compile(). So a layer that is frozen or unfrozen in
between, without compile(), is trained as before.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import keras

from tfgpujob_trainer.reporting.log import say

_CHANGED = (
    "trainable was set after the first fit() of this model, and as in Keras it counts from the next compile() on: "
    "call compile() after it"
)


@dataclass(frozen=True, slots=True)
class _Trained:
    """Replaces Keras' own function, which is not called."""

    layers: bytes
    variables: bytes

    def fits(self, other: _Trained) -> bool:
        """True if both have as many layers and variables."""
        return (len(self.layers), len(self.variables)) == (len(other.layers), len(other.variables))


@contextmanager
def trained_as_at_first(model: keras.Model) -> Iterator[None]:
    """Set the layers' trainable flags to those of the model's first fit() since it was compiled; log it."""
    before, at_first = _found(model), model.train_function
    other = isinstance(at_first, _Trained) and at_first != before and at_first.fits(before)
    if not other:
        yield
        return
    say(_CHANGED)
    _set(model, at_first)
    try:
        yield
    finally:
        _set(model, before)


def remember_trained(model: keras.Model) -> None:
    """Record what is trainable in a fit(), as soon as the model is built."""
    if model.train_function is None:
        model.train_function = _found(model)


def _found(model: keras.Model) -> _Trained:
    return _Trained(
        bytes(bool(layer.trainable) for layer in model._flatten_layers()),  # noqa: SLF001
        bytes(bool(variable.trainable) for variable in model.variables),
    )


def _set(model: keras.Model, wanted: _Trained) -> None:
    # A layer's own setter would set its variables and layers too.
    for layer, flag in zip(model._flatten_layers(), wanted.layers, strict=True):  # noqa: SLF001
        layer._trainable = bool(flag)  # noqa: SLF001
    for variable, flag in zip(model.variables, wanted.variables, strict=True):
        if variable.trainable != bool(flag):
            variable.trainable = bool(flag)
