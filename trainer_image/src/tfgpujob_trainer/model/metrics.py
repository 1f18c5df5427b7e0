"""The model's metrics over all replicas: state that is summed in the step's all-reduce, and results computed from it.

Before the first step it is checked on some rows that the sum is what one replica would have counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfgpujob_trainer.contract.support import require
from tfgpujob_trainer.model.batch import Batch
from tfgpujob_trainer.model.variables import local_value
from tfgpujob_trainer.reporting.numbers import one_number

_TOLERANCE = {"rtol": 1e-3, "atol": 1e-6, "equal_nan": True}
"""Rounding errors; real differences are larger."""


def check_metrics(model: keras.Model, strategy: str) -> None:
    """Raise ConfigError unless every metric's fresh state is a sum that starts at zero."""
    for variable in model.metrics_variables:
        if variable.aggregation != "sum" or local_value(variable).any():
            require("a metric that is no sum", strategy, f"metric state {variable.path!r}")


def kept_over_resets(model: keras.Model) -> list[str]:
    """Notes about state that the reset_state() of its metric leaves as it is."""
    variables = model.metrics_variables
    with keras.StatelessScope(state_mapping=[(v, tf.ones(v.shape, v.dtype)) for v in variables]) as scope:
        model.reset_metrics()
        kept = [v.path for v in variables if np.any(scope.get_current_value(v))]
    return [f"{path}: reset_state() keeps it; here each epoch and evaluation begins at zero" for path in kept]


def by_name(logs: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Each value by its name: a metric that has several, such as all that compile() is given, is a dict of them."""
    for name, value in logs.items():
        if isinstance(value, Mapping):
            yield from by_name(value)
        else:
            yield name, value


def variables_as_results(model: keras.Model) -> list[str]:
    """Notes about metrics whose result() is a variable: Keras reads it once the validation has counted in it too."""
    named = by_name(model.get_metrics_result())
    found = [name for name, value in named if isinstance(value, keras.Variable)]
    return [f"{name}: its result() is a variable, so plain Keras shows val_{name} in its place" for name in found]


def check_shared_metrics(model: keras.Model, batch: Batch, y_pred: Any, strategy: str) -> list[str]:
    """What to say of metrics that make of a batch one number: each replica's counts alike.

    Nothing of a model with outputs that are not one for each row. Raises ConfigError for a metric whose state can't be
    summed, such as a maximum.
    """
    counted = (*batch[:2], y_pred, batch[2])
    lengths = {array.shape[0] if array.shape.rank else 0 for array in tf.nest.flatten(counted) if array is not None}
    rows = max(lengths)
    if rows == 1 or len(lengths) > 1:
        return []
    notes: dict[str, list[str]] = {}
    # Parts of different length: where they are alike, the mean of their means is that of all rows. Cut at several
    # places, since the medians of two parts often are those in the middle of all rows.
    for first_rows in sorted({max(1, part * rows // 8) for part in (1, 2, 3)}):
        # All rows are cut out too, since what is cut out has no mask.
        parts = [
            tf.nest.map_structure(lambda array, part=part: None if array is None else array[part], counted)
            for part in (slice(0, rows), slice(0, first_rows), slice(first_rows, rows))
        ]
        whole, first, second, both = (_counted(model, some) for some in (parts[:1], parts[1:2], parts[2:], parts[1:]))
        summed = [a + b for a, b in zip(first, second, strict=True)]
        for variable, one, other in zip(model.metrics_variables, both, summed, strict=True):
            if not np.allclose(one, other, **_TOLERANCE):
                require("a metric that is no sum", strategy, f"metric state {variable.path!r}")
        of_parts = results(model, summed)
        for name, value in results(model, whole).items():
            if not np.allclose(value, of_parts[name], **_TOLERANCE):
                numbers = one_number(value), one_number(of_parts[name])
                found = f"metric {name!r} ({numbers[0]:.4g} of {rows} rows, {numbers[1]:.4g} of their parts)"
                notes[name] = require("a metric of one number for a batch", strategy, found)
    return [note for said in notes.values() for note in said]


def has_own_numbers(model: keras.Model) -> bool:
    """Whether its author has written compute_metrics(), which may return what is no metric."""
    return type(model).compute_metrics is not keras.Model.compute_metrics


def numbers_left_out(model: keras.Model, batch: Batch, y_pred: Any) -> list[str]:
    """Notes about numbers of its compute_metrics() that no metric of the model has."""
    with keras.StatelessScope():
        returned = model.compute_metrics(*batch[:2], y_pred, batch[2])
        known = model.get_metrics_result()
    return [
        f"{name!r} of {type(model).__name__}.compute_metrics() is no metric of the model: it is left out"
        for name in returned
        if name not in known
    ]


def _counted(model: keras.Model, batches: Sequence[Any]) -> list[Any]:
    """The state of all metrics after (x, y, y_pred, sample weight) of these batches; their own stays as it is."""
    variables = model.metrics_variables
    with keras.StatelessScope(state_mapping=[(v, tf.zeros(v.shape, v.dtype)) for v in variables]) as scope:
        for batch in batches:
            model.compute_metrics(*batch)
        return [np.asarray(scope.get_current_value(v)) for v in variables]


def fit(model: keras.Model, states: Sequence[Any]) -> bool:
    """Whether saved state has the shapes of the model's metrics."""
    return [tuple(v.shape) for v in model.metrics_variables] == [tuple(state.shape) for state in states]


def results(model: keras.Model, states: list[Any], *, with_loss: bool = False) -> dict[str, Any]:
    """The model's metrics from state that was summed over all replicas; one named loss only `with_loss`.

    Each is a number or, as a score of each class is, a list of them.
    """
    mapping = list(zip(model.metrics_variables, states, strict=True))
    with keras.StatelessScope(state_mapping=mapping):
        values = {name: np.asarray(v, keras.config.floatx()) for name, v in by_name(model.get_metrics_result())}
    return {name: value.tolist() for name, value in values.items() if with_loss or name != "loss"}


class MetricStates:
    """The state of the model's metrics: between two steps, on every replica what all of them have counted.

    A step counts from zero, and the sum over the replicas is added to what was there. So the rounding of a sum depends
    on the steps alone, and not on where it was saved and restored.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        model: keras.Model,
        of_batch: Callable[[list[Any]], list[Any]] | None = None,
    ) -> None:
        """`of_batch` makes of the sums of a step over all replicas what it counts for, if that is another thing."""
        self._strategy, self._variables, self._of_batch = strategy, model.metrics_variables, of_batch
        self._apart = strategy.num_replicas_in_sync > 1 or of_batch is not None
        # A function: each epoch begins with it, and outside one a replica of Mirrored is a thread to start.
        self._assign = tf.function(self._assign_replicas, autograph=False)
        self._leave = tf.function(self._leave_replicas, autograph=False)

    def reset(self) -> None:
        """Reset the counts on every replica."""
        self.restore([np.zeros(v.shape) for v in self._variables])

    def restore(self, states: list[Any]) -> None:
        """Give every replica the state of all."""
        if self._variables:
            self._assign([tf.cast(state, v.dtype) for state, v in zip(states, self._variables, strict=True)])

    def leave(self, states: list[Any]) -> None:
        """As Keras leaves them behind: `result()` outside of a step reads the sum over all replicas."""
        if self._variables:
            self._leave([tf.cast(state, v.dtype) for state, v in zip(states, self._variables, strict=True)])

    def _leave_replicas(self, states: list[Any]) -> None:
        def replica() -> None:
            context = tf.distribute.get_replica_context()
            is_first = tf.equal(tf.convert_to_tensor(context.replica_id_in_sync_group), 0)
            for variable, state in zip(self._variables, states, strict=True):
                variable.assign(tf.where(is_first, state, tf.zeros_like(state)))

        self._strategy.run(replica)

    def _assign_replicas(self, states: list[Any]) -> None:
        def replica() -> None:
            for variable, state in zip(self._variables, states, strict=True):
                variable.assign(state)

        self._strategy.run(replica)

    def begin_step(self) -> list[Any]:
        """In a replica: what was counted before this step, which begins at zero."""
        if not self._apart:
            return []
        before = self.of_step()
        for variable, state in zip(self._variables, before, strict=True):
            variable.assign(tf.zeros_like(state))
        return before

    def of_step(self) -> list[Any]:
        """In a replica: what it has counted in this step; a single one may say all that it ever has."""
        return [tf.identity(tf.convert_to_tensor(v.value)) for v in self._variables]

    def end_step(self, before: list[Any], sums: list[Any]) -> list[Any]:
        """In a replica: what all have counted so far, from the sums of this step over them."""
        if not self._apart:
            return sums
        sums = sums if self._of_batch is None else self._of_batch(sums)
        states = [state + of_step for state, of_step in zip(before, sums, strict=True)]
        for variable, state in zip(self._variables, states, strict=True):
            variable.assign(state)
        return states
