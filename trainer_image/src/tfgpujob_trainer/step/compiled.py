"""A step or an evaluation batch of all replicas as one graph, and its result, which is the same on every worker."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfgpujob_trainer.model.batch import batch_spec, number
from tfgpujob_trainer.model.loss import LossSums, loss_of, numbers_of
from tfgpujob_trainer.model.variables import traced_variables
from tfgpujob_trainer.step.layer_states import unlike_states

_RANDOM = ("Random", "TruncatedNormal", "ParameterizedTruncatedNormal", "Multinomial")
"""How the names of TensorFlow's random operations with a state of their own begin."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step, or an evaluation batch, gives every worker alike.

    `held`: some worker can't afford an in-memory checkpoint after it.
    `loss` is (numerator, normaliser) of each part of the loss, summed over the global batch; a plain sum has no
    normaliser. `not_finite` has one number for each replica: 1 where the loss was NaN or infinite. `applied` is False
    when the gradients overflowed and the step was skipped. `own_seconds` is what each replica's worker passed as its
    own. `all_reduce_seconds` is this worker's: from when all of its replicas had their sums until the all-reduce was
    done, so the time for which it waited for slower workers is in it.
    `metrics`, still on the device, is the state of the model's metrics since they were last reset, summed over all
    replicas.
    """

    stop: bool
    held: bool
    applied: bool
    all_reduce_seconds: float
    not_finite: list[float]
    own_seconds: list[float]
    loss: LossSums
    metrics: list[Any]


Step = Callable[..., StepResult]
"""Has the arguments of `Compiled`."""


class Compiled:
    """A function of each replica, in one graph.

    That function returns whether the gradients were applied, the `flags`, (numerator,
    normaliser) of each part of the loss, the state of the metrics, and the times of the all-reduce. `inputs` is the
    signature of the batches; without one it is traced for each size of batch and each number of micro-batches.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        replica: Callable[..., Any],
        inputs: Any,
        as_traced: Callable[[Any], AbstractContextManager[None]],
    ) -> None:
        self._strategy, self._replica, self._signed = strategy, replica, inputs is not None
        self._as_traced = as_traced
        self._has_normaliser: list[bool] = []
        numbers = (tf.TensorSpec([None, None], tf.int32), tf.TensorSpec([2], tf.bool), tf.TensorSpec([], tf.float32))
        self.function = tf.function(
            self._run, autograph=False, input_signature=None if inputs is None else [inputs, *numbers]
        )

    @cached_property
    def _traced(self) -> Callable[..., Any]:
        """The function; with a signature its only trace, because a tf.function takes 0.3 ms a call to find it."""
        return self.function.get_concrete_function() if self._signed else self.function

    def variables(self) -> list[tf.Variable]:
        """What it reads or changes; nothing as long as it is not traced."""
        return traced_variables(self._traced) if self._signed else []

    def draws(self) -> bool:
        """Whether it has random operations whose state is no variable, so that no checkpoint keeps it."""
        if not self._signed:
            return False
        graph = self._traced.graph  # type: ignore[attr-defined]
        functions = graph._functions.values()  # noqa: SLF001 (TensorFlow is pinned)
        nodes = [node.op for function in functions for node in function.cached_definition.node_def]
        return any(kind.startswith(_RANDOM) for kind in (*nodes, *(one.type for one in graph.get_operations())))

    def __call__(
        self, batches: Any, edges: Any, *, stop: bool = False, hold: bool = False, own_seconds: float = 0.0
    ) -> StepResult:
        """One step, or one batch of an evaluation."""
        with unlike_states():
            vector, metrics = self._traced(batches, edges, tf.constant((stop, hold)), number(own_seconds, np.float32))
            numbers = vector.numpy().tolist()
        replicas = self._strategy.num_replicas_in_sync
        all_reduce_seconds, applied, stopped, held, *more = numbers
        return StepResult(
            stop=bool(stopped),
            held=bool(held),
            applied=bool(applied),
            all_reduce_seconds=all_reduce_seconds,
            not_finite=more[:replicas],
            own_seconds=more[replicas : 2 * replicas],
            loss=loss_of(iter(more[2 * replicas :]), self._has_normaliser),
            metrics=metrics,
        )

    def _run(self, *arguments: Any) -> Any:
        with self._as_traced(arguments[0][0]):
            *result, times = self._strategy.run(self._replica, args=arguments)
        local = self._strategy.experimental_local_results
        applied, flags, groups, metrics = tf.nest.map_structure(lambda v: local(v)[0], result)
        self._has_normaliser = [normaliser is not None for _, normaliser in groups]
        ready, reduced = tf.unstack(tf.reduce_max(local(times), axis=0))
        numbers = [reduced - ready, applied, flags, *numbers_of(groups)]
        # One vector, because the host waits for each number that it reads.
        return tf.concat([tf.reshape(tf.cast(one, tf.float64), [-1]) for one in numbers], axis=0), metrics


class Evaluation:
    """A function of each replica for batches to evaluate on, which need not be like those of the training.

    Those of validation_data may have weights, or be padded to other lengths. For each kind there is a graph, and one
    for all lengths as soon as a second one comes.
    """

    def __init__(self, compile_for: Callable[[Any], Step], arrays: Any) -> None:
        """`compile_for` gives the function for batches of a specification, `arrays` are rows of the first kind."""
        specs = batch_spec(arrays)
        self._compile_for, self._compiled = compile_for, [(specs, compile_for(specs))]

    def __call__(self, batches: Any, edges: Any) -> StepResult:
        """One batch, as every local replica's part of it; `edges`: where that begins and ends."""
        found = next((compiled for known, compiled in self._compiled if _covers(known, batches[0])), None)
        if found is None:
            specs = batch_spec(batches[0])
            for known, _ in self._compiled:
                specs = _common(known, specs)
            found = self._compile_for(specs)
            self._compiled.append((specs, found))
        return found(batches, edges)


def _common(known: Any, specs: Any) -> Any:
    """`specs` without the lengths in which they differ from those of the same kind."""
    try:
        common = tf.nest.map_structure(lambda a, b: a.most_specific_compatible_type(b), known, specs)
    except (TypeError, ValueError):  # another structure or type
        return specs
    return specs if any(spec.shape.rank is None for spec in tf.nest.flatten(common)) else common


def _covers(known: Any, batch: Any) -> bool:
    """Whether the batch is of that specification. Asked for each batch, so without `map_structure`: 8 µs, not 70."""
    try:
        tf.nest.assert_same_structure(known, batch)
    except (TypeError, ValueError):
        return False
    flat = zip(tf.nest.flatten(known), tf.nest.flatten(batch), strict=True)
    return all(spec.is_compatible_with(array) for spec, array in flat)


def as_traced(model: keras.Model, rows: Any, *, training: bool) -> AbstractContextManager[None]:
    """While a function of `rows`, or their specification, is traced: with the Python values that Keras' own would have.

    In a script, which sets some between two calls of fit() (script/traced.py).
    """
    kept = model.train_function if training else model.test_function
    return kept.as_traced(model, rows) if hasattr(kept, "as_traced") else nullcontext()


def flags(strategy: tf.distribute.Strategy, finite: Any, votes: Any, own_seconds: Any, dtype: Any) -> Any:
    """What a replica sends to all others: its votes, to stop and to hold, whether its numbers are finite, its
    seconds.
    """
    context = tf.distribute.get_replica_context()
    mine = tf.one_hot(context.replica_id_in_sync_group, strategy.num_replicas_in_sync, dtype=dtype)
    not_finite, own = tf.cast(tf.logical_not(finite), dtype), tf.cast(own_seconds, dtype)
    return tf.concat([tf.cast(votes, dtype), mine * not_finite, mine * own], axis=0)
