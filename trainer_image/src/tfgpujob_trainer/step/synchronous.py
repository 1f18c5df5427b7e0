"""The exact step: the same weights, whatever the number of replicas.

Each replica sums its losses and gradients. One all-reduce per optimizer step then carries the gradients,
numerators and normalisers of the loss, the metrics, the moving statistics and the stop flag together.
Only after it are the sums divided, clipped and applied, with the optimizer's own reduction switched off.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfgpujob_trainer.cluster.strategy import name_in_support
from tfgpujob_trainer.contract.support import require
from tfgpujob_trainer.model.batch import Batch, batch_spec, number, unpack
from tfgpujob_trainer.model.class_weights import weigher
from tfgpujob_trainer.model.coupled_loss import check_coupled_loss
from tfgpujob_trainer.model.loss import LossParts, LossSums, grouped, loss_of, mean_loss, numbers_of
from tfgpujob_trainer.model.metrics import MetricStates, results
from tfgpujob_trainer.model.moving_statistics import batch_normalization_notes, batch_normalizations, moving_statistics
from tfgpujob_trainer.model.optimizer_takeover import OptimizerTakeover
from tfgpujob_trainer.step.allreduce import AllReduce, local_replica
from tfgpujob_trainer.step.gradient_accumulation import accumulate
from tfgpujob_trainer.step.gradients import add, all_finite, divided, multiplied, shaped
from tfgpujob_trainer.step.jit import Sums, compiling, jitted, jitted_notes


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step, or an evaluation batch, gives every worker alike.

    `loss` is (numerator, normaliser) of each part of the loss, summed over the global batch; a plain sum has no
    normaliser. `not_finite` has one number for each replica: 1 where the loss was NaN or infinite. `applied` is False
    when the gradients overflowed and the step was skipped. `own_seconds` is what each replica's worker passed as its
    own. `all_reduce_seconds` is this worker's: from when all of its replicas had their sums until the all-reduce was
    done, so the time for which it waited for slower workers is in it.
    `metrics`, still on the device, is the state of the model's metrics since they were last reset, summed over all
    replicas.
    """

    stop: bool
    applied: bool
    all_reduce_seconds: float
    not_finite: list[float]
    own_seconds: list[float]
    loss: LossSums
    metrics: list[Any]


class Compiled:
    """A function of each replica, in one graph.

    That function returns whether the gradients were applied, the `flags`, (numerator,
    normaliser) of each part of the loss, the state of the metrics, and the times of the all-reduce. `inputs` is the
    signature of the batches; without one it is traced for each size of batch and each number of micro-batches.
    """

    def __init__(self, strategy: tf.distribute.Strategy, replica: Callable[..., Any], inputs: Any) -> None:
        self._strategy, self._replica = strategy, replica
        self._has_normaliser: list[bool] = []
        numbers = (tf.TensorSpec([None, None], tf.int32), tf.TensorSpec([], tf.bool), tf.TensorSpec([], tf.float32))
        self.function = tf.function(
            self._run, autograph=False, input_signature=None if inputs is None else [inputs, *numbers]
        )

    def __call__(self, batches: Any, edges: Any, *, stop: bool = False, own_seconds: float = 0.0) -> StepResult:
        """One step, or one batch of an evaluation."""
        vector, metrics = self.function(batches, edges, tf.constant(stop), number(own_seconds, np.float32))
        replicas = self._strategy.num_replicas_in_sync
        all_reduce_seconds, applied, stopped, *more = vector.numpy().tolist()
        return StepResult(
            stop=bool(stopped),
            applied=bool(applied),
            all_reduce_seconds=all_reduce_seconds,
            not_finite=more[:replicas],
            own_seconds=more[replicas : 2 * replicas],
            loss=loss_of(iter(more[2 * replicas :]), self._has_normaliser),
            metrics=metrics,
        )

    def _run(self, *arguments: Any) -> Any:
        *result, times = self._strategy.run(self._replica, args=arguments)
        local = self._strategy.experimental_local_results
        applied, flags, groups, metrics = tf.nest.map_structure(lambda v: local(v)[0], result)
        self._has_normaliser = [normaliser is not None for _, normaliser in groups]
        ready, reduced = tf.unstack(tf.reduce_max(local(times), axis=0))
        numbers = [reduced - ready, applied, flags, *numbers_of(groups)]
        # One vector: the host waits for each number that it reads.
        return tf.concat([tf.reshape(tf.cast(one, tf.float64), [-1]) for one in numbers], axis=0), metrics


def flags(strategy: tf.distribute.Strategy, finite: Any, stop: Any, own_seconds: Any, dtype: Any) -> Any:
    """What a replica tells all others: whether it stops, whether its numbers are finite, and its seconds."""
    context = tf.distribute.get_replica_context()
    mine = tf.one_hot(context.replica_id_in_sync_group, strategy.num_replicas_in_sync, dtype=dtype)
    not_finite, own = tf.cast(tf.logical_not(finite), dtype), tf.cast(own_seconds, dtype)
    return tf.concat([[tf.cast(stop, dtype)], mine * not_finite, mine * own], axis=0)


class SynchronousSteps:
    """Training and evaluation steps of one model under one strategy.

    `arrays` are some rows of the data; `rows` is what each replica gets of every training batch, if that is always the
    same: TensorFlow is a little faster where it knows.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        model: keras.Model,
        takeover: OptimizerTakeover,
        arrays: Any,
        *,
        rows: int | None = None,
        jit: bool = False,
        half: bool = False,
        class_weights: Mapping[str, float] | None = None,
    ) -> None:
        self._strategy, self._model, self._takeover = strategy, model, takeover
        self._weigh = weigher(class_weights or {})
        replicas = len(strategy.extended.worker_devices)
        self._all_reduce = AllReduce(strategy, half=half)
        self._loss = LossParts(model)
        self.metric_states = MetricStates(strategy, model)
        self._statistics = moving_statistics(model)
        name = name_in_support(strategy)
        self.notes = [*self._loss.notes, *batch_normalization_notes(model, name, takeover.accumulate)]
        self._unrolled = strategy.num_replicas_in_sync > 1 and bool(batch_normalizations(model, synchronized=True))
        if half:
            self.notes += require("allReduce: float16", name, "allReduce: float16")
        inputs = (batch_spec(arrays, rows),) * replicas
        self._train = self._compile(partial(self._train_replica, self._sums), inputs)
        self._train_jitted = None
        if jit:
            self.notes += jitted_notes(model, name)
            self._train_jitted = self._compile(partial(self._train_replica, jitted(self._sums)), inputs)
        self._evaluate = self._compile(self._evaluate_replica, (batch_spec(arrays),) * replicas)

    def values(self, loss: LossSums, states: list[Any]) -> dict[str, float]:
        """Loss and metrics from their sums."""
        return {"loss": mean_loss(loss) + self.regularisation(), **results(self._model, states)}

    def evaluated(self, loss: LossSums, states: list[Any]) -> dict[str, float]:
        """The same of an evaluation."""
        return self.values(loss, states)

    def check_coupled_loss(self, rows: Any, *, allowed: bool) -> list[str]:
        """What to say of a loss that couples rows; raises ConfigError if it is to be accumulated and not allowed."""
        if self._strategy.num_replicas_in_sync == 1 and self._takeover.accumulate == 1:
            return []
        weighed = self._weigh(unpack(tf.nest.map_structure(tf.convert_to_tensor, rows)))
        return check_coupled_loss(
            self._model,
            self._loss,
            tuple(part for part in weighed if part is not None),
            accumulate=self._takeover.accumulate,
            strategy=name_in_support(self._strategy),
            allowed=allowed,
        )

    def train(
        self, batches: Any, *, edges: Any, stop: bool, own_seconds: float = 0.0, whole: bool = True
    ) -> StepResult:
        """One optimizer step on this worker's part of a global batch; `whole` unless the batch is a short one.

        `edges`, of shape (replicas, micro-batches + 1): where each replica's micro-batches begin and end in its rows.
        `own_seconds` is how long this worker needs for a step without the all-reduce; every worker gets it.
        """
        function = self._train_jitted if whole and self._train_jitted is not None else self._train
        with compiling(function is self._train_jitted):
            return function(batches, edges, stop=stop, own_seconds=own_seconds)

    def evaluate(self, batches: Any) -> StepResult:
        """One batch of an evaluation."""
        return self._evaluate(batches, tf.zeros([1, 1], tf.int32))

    def waits_for_peers(self) -> bool:
        """Whether this worker has done its part of a step, or of an evaluation batch, and lacks the others'.

        Any thread may ask.
        """
        return self._all_reduce.waits_for_peers()

    def regularisation(self) -> float:
        """The weight regularisers' part of the loss, now."""
        return float(self._loss.regularisation()) if self._loss.regularised else 0.0

    def _compile(self, replica: Callable[..., Any], inputs: Any) -> Compiled:
        return Compiled(self._strategy, replica, None if self._unrolled else inputs)

    def _train_replica(self, sums: Sums, batches: Any, edges: Any, stop: Any, own_seconds: Any) -> tuple[Any, ...]:
        replica = local_replica(self._strategy)
        batch, before = batches[replica], self.metric_states.begin_step()
        if self._takeover.accumulate == 1:
            groups, gradients = sums(batch)
        else:
            groups, gradients = accumulate(batch, edges[replica], sums, unrolled=self._unrolled)
        message = self._message(groups, stop, own_seconds)
        message["gradients"] = gradients
        message["statistics"] = [tf.convert_to_tensor(v.value) for v in self._statistics]
        message, times = self._all_reduce.gradients(message)
        applied = self._apply(self._combine(message))
        replicas = self._strategy.num_replicas_in_sync
        for variable, value in zip(self._statistics, message["statistics"], strict=True):
            variable.assign(value / tf.cast(replicas, value.dtype))
        states = self.metric_states.end_step(before, message["metrics"])
        return applied, message["flags"], message["groups"], states, times

    def _sums(self, packed: Any) -> tuple[list[Any], list[Any]]:
        """(numerator, normaliser) of each part of the loss of these rows, and the numerators' gradients."""
        batch = self._weigh(unpack(packed))
        variables = self._model.trainable_variables
        scale, unscale = self._scaling(batch)
        with tf.GradientTape(persistent=True) as tape:
            y_pred = self._model(batch[0], training=True)
            groups = list(grouped(self._loss(batch, y_pred, training=True)).values())
            targets = [n if scale is None else n * tf.cast(scale, n.dtype) for n, _ in groups]
        gradients = [shaped(tape.gradient(target, variables), variables) for target in targets]
        self._model.compute_metrics(batch[0], batch[1], y_pred, batch[2])
        return groups, [[multiplied(g, unscale) for g in group] for group in gradients]

    def _scaling(self, batch: Batch) -> tuple[Any, Any]:
        """What a numerator is multiplied by before the backward pass, and its gradients after it.

        A sum over rows overflows float16 sooner than a mean, so the rows are divided out in between.
        """
        if self._takeover.loss_scale is None:
            return None, None
        rows = tf.maximum(tf.cast(tf.shape(tf.nest.flatten(batch[0])[0])[0], tf.float32), 1.0)
        return self._takeover.loss_scale.value / rows, rows

    def _apply(self, gradients: list[Any]) -> Any:
        """Apply the gradient of the global loss or, after an overflow, skip it; whether it was applied."""
        if self._takeover.loss_scale is None:
            return self._apply_finite(gradients)
        return tf.distribute.get_replica_context().merge_call(self._apply_if_finite, args=(gradients,))

    def _apply_finite(self, gradients: list[Any]) -> Any:
        """Unscale, regularise, clip and apply."""
        variables, scale = self._model.trainable_variables, self._takeover.loss_scale
        total = gradients if scale is None else [divided(g, scale.value) for g in gradients]
        if self._loss.regularised:
            with tf.GradientTape() as tape:
                regularisation = self._loss.regularisation()
            added = tape.gradient(regularisation, variables)
            total = [add(a, b) for a, b in zip(total, added, strict=True)]
        if self._takeover.clip is not None:
            total = self._takeover.clip(total)
        self._takeover.optimizer.apply(total, variables)
        if self._takeover.averages is not None:
            self._takeover.averages.overwrite_if_due(variables)
        if scale is not None:
            scale.grow()
        return tf.constant(True)

    def _apply_if_finite(self, strategy: tf.distribute.Strategy, gradients: list[Any]) -> Any:
        """The branch, taken for all replicas of this worker at once; the gradients are the same on every replica."""

        def run(function: Callable[..., Any], *args: Any) -> Any:
            results = strategy.extended.call_for_each_replica(function, args=args)
            return strategy.experimental_local_results(results)[0]

        def skip() -> Any:
            assert self._takeover.loss_scale is not None
            self._takeover.loss_scale.shrink()
            return tf.constant(False)

        finite = run(all_finite, gradients)
        return tf.cond(finite, lambda: run(self._apply_finite, gradients), lambda: run(skip))

    def _evaluate_replica(self, batches: Any, _edges: Any, stop: Any, own_seconds: Any) -> tuple[Any, ...]:
        batch, before = unpack(batches[local_replica(self._strategy)]), self.metric_states.begin_step()
        y_pred = self._model(batch[0], training=False)
        groups = list(grouped(self._loss(batch, y_pred, training=False)).values())
        self._model.compute_metrics(batch[0], batch[1], y_pred, batch[2])
        message, times = self._all_reduce(self._message(groups, stop, own_seconds))
        states = self.metric_states.end_step(before, message["metrics"])
        return tf.constant(True), message["flags"], message["groups"], states, times

    def _message(self, groups: list[Any], stop: Any, own_seconds: Any) -> dict[str, Any]:
        """What is all-reduced beside the gradients; `Compiled` reads the flags."""
        finite = tf.reduce_all([tf.math.is_finite(numerator) for numerator, _ in groups])
        return {
            "flags": flags(self._strategy, finite, stop, own_seconds, groups[0][0].dtype),
            "groups": groups,
            "metrics": self.metric_states.of_step(),
        }

    def _combine(self, message: dict[str, Any]) -> list[Any]:
        """The gradient of the global loss from the sums over all replicas."""
        total: list[Any] = [None] * len(message["gradients"][0])
        for gradients, (_, normaliser) in zip(message["gradients"], message["groups"], strict=True):
            for i, gradient in enumerate(gradients):
                total[i] = add(total[i], divided(gradient, normaliser))
        return total
