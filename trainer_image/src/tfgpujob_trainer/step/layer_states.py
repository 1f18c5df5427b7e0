"""State that layers of the model's author keep: counters, sums, running maxima, moving averages.

Each replica changes it by its own rows. Before the first step it is found what one device would compute from all rows
(step/trial.py): the change by some rows is compared with those by their halves. State that is neither equal, nor their
mean, maximum, minimum or sum is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.model.moving_statistics import is_of_author
from tfgpujob_trainer.model.variables import plain_variables
from tfgpujob_trainer.step.trial import Seen, State, Trial, each_of, wide

_KINDS = ("alike", "mean", "largest", "smallest", "sum")
"""Relation of one device's value to the replicas'. The first that fits: equal values fit others too."""
_SHARED = {"mean": "the mean", "sum": "the sum", "largest": "the maximum", "smallest": "the minimum"}
_ALIKE = 1e-3
"""Relative difference that equal values may have after rounding."""
_UNLIKE = re.compile(r"replicas have changed (\S++) in different ways")
_FIX = (
    "let it be a mean, a sum, a maximum or a minimum over rows, or the same whatever the rows are; add_weight(..., "
    "aggregation='mean' or 'only_first_replica') takes it as if it were"
)


class LayerStates:
    """The states of one model under one strategy; none until some are found."""

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        self._replicas = strategy.num_replicas_in_sync
        self._states: list[tuple[Any, str]] = []
        self.kinds: dict[int, list[str]] = {}
        """What they may be, by their number among the candidates."""

    def take(self, candidates: Sequence[Any], found: Sequence[Seen], trial: Trial) -> list[str]:
        """Find them among these candidates, in what a trial found of each; what is to be said of them.

        Raises ConfigError for what replicas cannot share. Those of an earlier call are left out that no longer fit.
        """
        notes: list[str] = []
        shared: dict[str, list[str]] = {}
        refused, before, self._states = [], self.kinds, []
        for i, state in enumerate(candidates):
            if id(state.value) not in trial.changed:
                continue
            kinds = [k for k in before.get(i, [*_KINDS]) if all(_fits(k, seen.states[i]) for seen in found)]
            self.kinds = self.kinds | {i: kinds}
            kind = kinds[0] if kinds else _nearly(state, trial)
            if kind is None:
                refused.append(state.path)
                continue
            self._states.append((state, kind))
            if i not in before and kind in _SHARED:
                shared.setdefault(_SHARED[kind], []).append(state.path)
            if not kinds and before.get(i, True):
                notes.append(
                    f"{state.path}: its change by some rows does not follow from those by their halves, each step has "
                    + ("the mean of the replicas'" if kind == "mean" else "the first replica's")
                )
        if refused:
            raise ConfigError(
                f"replicas cannot share {', '.join(refused)}: the change by some rows is neither the mean, the sum nor "
                "an extreme of those by their halves",
                _FIX,
            )
        for what, paths in shared.items():
            how = (
                f"the change by some rows was {what} of those by their halves, so each step has {what} of the replicas'"
            )
            notes.append(f"{', '.join(paths)}: {how}")
        return notes

    @property
    def unlike(self) -> list[str]:
        """The paths of those that depend on the rows."""
        return [state.path for state, kind in self._states if kind != "alike"]

    def before(self) -> list[Any]:
        """Their values at the start of a step."""
        return [tf.convert_to_tensor(state.value) for state, _ in self._states]

    def message(self, before: list[Any], rows: Any) -> list[Any]:
        """What is summed over the replicas after this one has taken its `rows`; of none, a stand-in's don't count."""
        message = [tf.cast(rows, tf.int64)] if self._states else []
        for (state, kind), old in zip(self._states, before, strict=True):
            value = wide(tf.convert_to_tensor(state.value))
            if kind in ("mean", "sum"):  # sum the change, so that unchanged values keep their bits
                change = value - wide(old)
                shared = change * tf.cast(rows, value.dtype) if kind == "mean" else change
                message.append(tf.where(rows > 0, shared, tf.zeros_like(shared)))
            else:
                message.append(each_of(tf.reduce_sum(tf.abs(value)) if kind == "alike" else value, self._replicas))
        return message

    def assign(self, before: list[Any], summed: list[Any]) -> None:
        """Set on every replica what one device would have after the rows of all."""
        for (state, kind), old, value in zip(self._states, before, summed[1:], strict=True):
            if kind == "alike":
                off = tf.cast(tf.reduce_max(tf.abs(value - value[0])), tf.float64)
                allowed = tf.cast(value[0], tf.float64) * (_ALIKE if value.dtype.is_floating else 0.0)
                tf.debugging.Assert(off <= allowed, [f"replicas have changed {state.path} in different ways"])
            else:
                state.assign(tf.cast(_of_all(kind, wide(old), value, summed[0]), old.dtype))


@contextmanager
def unlike_states() -> Iterator[None]:
    """An error, in one line, about state that replicas have changed differently although it was equal in the
    experiment.
    """
    try:
        yield
    except tf.errors.InvalidArgumentError as error:
        found = _UNLIKE.search(error.message)
        if found is None:
            raise
        raise ConfigError(
            f"{found[0]}: it was the same on all of them for some rows before the first step, and is not any more", _FIX
        ) from error


def states_of_author(model: keras.Model) -> list[Any]:
    """Variables of layers outside Keras that are not trained."""
    metrics = {id(v) for v in model.metrics_variables}
    layers = [layer for layer in model._flatten_layers() if is_of_author(layer)]  # noqa: SLF001
    own = [v for layer in layers for v in layer._non_trainable_variables if id(v) not in metrics]  # noqa: SLF001
    return [*own, *plain_variables(model)]


def _fits(kind: str, seen: State) -> bool:
    """Whether the value after some rows follows from those after their halves."""
    start, whole, (one, other) = seen.start, seen.whole, seen.halves
    floating = np.issubdtype(whole.dtype, np.floating)
    changes = np.abs(whole - start)
    scale = np.max(changes, initial=0.0, where=np.isfinite(changes))
    size = np.max(np.abs(whole), initial=0.0, where=np.isfinite(whole))
    eps = np.finfo(whole.dtype).eps if floating else 0.0
    slack = np.sqrt(eps) * scale + 8 * eps * size

    def close(a: np.ndarray, b: np.ndarray) -> bool:
        return np.allclose(a, b, rtol=0.0, atol=slack)

    if not close(one, seen.of_one):
        return kind == "alike" and close(one, other)  # the layer itself makes it one over the replicas
    if kind == "alike":
        return close(one, other) and close(one, whole)
    if kind == "mean":
        return floating and close((one + other) / 2, whole)
    if kind == "sum":
        return close(one + (other - start), whole)
    return close(np.maximum(one, other) if kind == "largest" else np.minimum(one, other), whole)


def _nearly(state: Any, trial: Trial) -> str | None:
    """What stands in where no kind fits: what its author says, or a mean where each replica's rows are its own."""
    if getattr(state, "aggregation", None) == "only_first_replica":  # TensorFlow takes a "mean" by itself
        return "first"
    return "mean" if trial.own_rows and tf.as_dtype(state.dtype).is_floating else None


def _of_all(kind: str, old: Any, summed: Any, rows: Any) -> Any:
    if kind == "mean":
        return old + summed / tf.cast(rows, summed.dtype)
    if kind == "sum":
        return old + summed
    if kind == "first":
        return summed[0]
    return (tf.reduce_max if kind == "largest" else tf.reduce_min)(summed, axis=0)
