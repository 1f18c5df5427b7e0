"""The exact step: the same weights, whatever the number of replicas.

Each replica sums its losses and gradients. One all-reduce per optimizer step then carries the gradients,
numerators and normalisers of the loss, the metrics, the moving statistics and the stop flag together.
Only after it are the sums divided, clipped and applied, with the optimizer's own reduction switched off.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from tfgpujob_trainer.lift import Lifted
from tfgpujob_trainer.loss import Batch, LossParts, grouped
from tfgpujob_trainer.metrics import check_metrics, metric_variables


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step, or an evaluation batch, tells every worker alike; still tensors on the device.

    `groups` holds (numerator, normaliser) of each part of the loss, summed over the global batch;
    `metrics` the state of the model's metrics since they were last reset, summed over all replicas;
    `not_finite` one number for each replica: 1 where the loss was NaN or infinite.
    """

    stop: Any
    not_finite: Any
    loss: Any
    groups: list[Any]
    metrics: list[Any]


class Steps:
    """Training and evaluation steps of one model under one strategy."""

    def __init__(self, strategy: tf.distribute.Strategy, model: keras.Model, lifted: Lifted, spec: Any) -> None:
        self._strategy, self._model, self._lifted = strategy, model, lifted
        self._devices = strategy.extended.worker_devices
        self._loss = LossParts(model)
        self._metrics = metric_variables(model)
        self._statistics = moving_statistics(model)
        self.notes = [*self._loss.notes, *_batch_statistics(strategy, model)]
        inputs = (spec,) * len(self._devices)
        flag = tf.TensorSpec([], tf.bool)
        self.train: Callable[[Any, Any], StepResult] = self._compile(self._train_replica, inputs, flag)
        self.evaluate: Callable[[Any, Any], StepResult] = self._compile(self._evaluate_replica, inputs, flag)

    def regularisation(self) -> float:
        """The weight regularisers' part of the loss, now."""
        return float(self._loss.regularisation()) if self._loss.regularised else 0.0

    def _compile(self, replica: Callable[..., Any], inputs: Any, flag: Any) -> Callable[[Any, Any], StepResult]:
        @tf.function(autograph=False, input_signature=[inputs, flag])
        def function(batches: Any, stop: Any) -> Any:
            result = self._strategy.run(replica, args=(batches, stop))
            return tf.nest.map_structure(lambda v: self._strategy.experimental_local_results(v)[0], result)

        return lambda batches, stop: StepResult(*function(batches, stop))

    def _train_replica(self, batches: Any, stop: Any) -> tuple[Any, ...]:
        batch = unpack(batches[self._replica()])
        variables = self._model.trainable_variables
        with tf.GradientTape(persistent=True) as tape:
            y_pred = self._model(batch[0], training=True)
            groups = grouped(self._loss(batch, y_pred, training=True))
        gradients = [_shaped(tape.gradient(n, variables), variables) for n, _ in groups.values()]
        self._model.compute_metrics(batch[0], batch[1], y_pred, batch[2])
        message = self._message(groups, stop)
        message["gradients"] = gradients
        message["statistics"] = [tf.convert_to_tensor(v.value) for v in self._statistics]
        message = self._all_reduce(message)
        total, loss = self._combine(message, variables)
        if self._lifted.clip is not None:
            total = self._lifted.clip(total)
        self._model.optimizer.apply(total, variables)
        replicas = self._strategy.num_replicas_in_sync
        for variable, value in zip(self._statistics, message["statistics"], strict=True):
            variable.assign(value / tf.cast(replicas, value.dtype))
        return self._result(message, loss)

    def _evaluate_replica(self, batches: Any, stop: Any) -> tuple[Any, ...]:
        batch = unpack(batches[self._replica()])
        y_pred = self._model(batch[0], training=False)
        groups = grouped(self._loss(batch, y_pred, training=False))
        self._model.compute_metrics(batch[0], batch[1], y_pred, batch[2])
        message = self._all_reduce(self._message(groups, stop))
        return self._result(message, _total(message["groups"]))

    def _message(self, groups: dict[str, tuple[Any, Any]], stop: Any) -> dict[str, Any]:
        finite = tf.reduce_all([tf.math.is_finite(numerator) for numerator, _ in groups.values()])
        context = tf.distribute.get_replica_context()
        dtype = next(iter(groups.values()))[0].dtype
        one_hot = tf.one_hot(context.replica_id_in_sync_group, self._strategy.num_replicas_in_sync, dtype=dtype)
        return {
            "stop": tf.cast(stop, dtype),
            "not_finite": one_hot * tf.cast(tf.logical_not(finite), dtype),
            "groups": list(groups.values()),
            "metrics": [tf.convert_to_tensor(v.value) for v in self._metrics],
        }

    def _combine(self, message: dict[str, Any], variables: Sequence[Any]) -> tuple[list[Any], Any]:
        """The gradient of the global loss, and that loss, from the sums over all replicas."""
        loss = _total(message["groups"])
        total: list[Any] = [None] * len(variables)
        for gradients, (_, normaliser) in zip(message["gradients"], message["groups"], strict=True):
            for i, gradient in enumerate(gradients):
                total[i] = _add(total[i], _scale(gradient, normaliser))
        if self._loss.regularised:
            with tf.GradientTape() as tape:
                regularisation = self._loss.regularisation()
            added = tape.gradient(regularisation, variables)
            total = [_add(a, b) for a, b in zip(total, added, strict=True)]
            loss += tf.cast(regularisation, loss.dtype)
        return total, loss

    def _result(self, message: dict[str, Any], loss: Any) -> tuple[Any, ...]:
        return message["stop"], message["not_finite"], loss, message["groups"], message["metrics"]

    def _all_reduce(self, message: dict[str, Any]) -> dict[str, Any]:
        """Sum a structure of tensors over all replicas in one collective for each dtype."""
        context = tf.distribute.get_replica_context()
        flat = tf.nest.flatten(message)
        reduced = list(flat)
        with tf.device(self._devices[self._replica()]):
            for dtype in sorted({t.dtype for t in _dense(flat)}, key=lambda d: d.name):
                places = [i for i, t in enumerate(flat) if isinstance(t, tf.Tensor) and t.dtype == dtype]
                sizes = [flat[i].shape.num_elements() for i in places]
                packed = tf.concat([tf.reshape(flat[i], [-1]) for i in places], axis=0)
                packed = context.all_reduce(tf.distribute.ReduceOp.SUM, packed)
                for i, part in zip(places, tf.split(packed, sizes), strict=True):
                    reduced[i] = tf.reshape(part, flat[i].shape)
            for i, tensor in enumerate(flat):
                if isinstance(tensor, tf.IndexedSlices):
                    reduced[i] = context.all_reduce(tf.distribute.ReduceOp.SUM, tensor)
        return tf.nest.pack_sequence_as(message, reduced)

    def _replica(self) -> int:
        """Which of this worker's replicas is being traced."""
        index = tf.get_static_value(tf.distribute.get_replica_context().replica_id_in_sync_group)
        return int(index) % len(self._devices)


def unpack(batch: Any) -> Batch:
    """x, y and sample weight of a batch that leaves out what is missing."""
    x, y, weight = (*batch, None, None)[:3]
    return x, y, weight


def batch_spec(arrays: Any) -> Any:
    """The signature of a batch of any number of rows."""
    return tf.nest.map_structure(lambda a: tf.TensorSpec([None, *a.shape[1:]], tf.as_dtype(a.dtype)), arrays)


def build(model: keras.Model, arrays: Any) -> None:
    """Create every variable of the model, its metrics, losses and optimizer, outside any step."""
    model._symbolic_build(data_batch=arrays)  # noqa: SLF001
    check_metrics(model)


def moving_statistics(model: keras.Model) -> list[Any]:
    """State that training layers change by themselves, such as BatchNormalization's moving mean.

    Every replica sees other rows, so these are averaged in the step's all-reduce, or the workers'
    weights would drift apart.
    """
    found: list[Any] = []
    for layer in model._flatten_layers():  # noqa: SLF001
        if layer.trainable:
            found += [v for v in layer._non_trainable_variables if tf.as_dtype(v.dtype).is_floating]  # noqa: SLF001
    metrics = {id(v) for v in model.metrics_variables}
    return [v for v in found if id(v) not in metrics]


def _batch_statistics(strategy: tf.distribute.Strategy, model: keras.Model) -> list[str]:
    if strategy.num_replicas_in_sync == 1:
        return []
    names = [
        layer.name
        for layer in model._flatten_layers()  # noqa: SLF001
        if isinstance(layer, keras.layers.BatchNormalization) and layer.trainable and not layer.synchronized
    ]
    if not names:
        return []
    fix = "BatchNormalization(synchronized=True) makes them those of the global batch"
    return [f"{', '.join(names)}: batch statistics are each replica's own; {fix}"]


def _total(groups: Sequence[tuple[Any, Any]]) -> Any:
    return tf.add_n([n if d is None else tf.math.divide_no_nan(n, tf.cast(d, n.dtype)) for n, d in groups])


def _shaped(gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
    """Gradients with the static shapes of their variables, which a batch of unknown size can hide."""
    return [
        tf.ensure_shape(g, v.shape) if isinstance(g, tf.Tensor) else g
        for g, v in zip(gradients, variables, strict=True)
    ]


def _dense(flat: Sequence[Any]) -> list[Any]:
    return [t for t in flat if isinstance(t, tf.Tensor)]


def _scale(gradient: Any, normaliser: Any) -> Any:
    if gradient is None or normaliser is None:
        return gradient
    if isinstance(gradient, tf.IndexedSlices):
        scaled = tf.math.divide_no_nan(gradient.values, tf.cast(normaliser, gradient.values.dtype))
        return tf.IndexedSlices(scaled, gradient.indices, gradient.dense_shape)
    return tf.math.divide_no_nan(gradient, tf.cast(normaliser, gradient.dtype))


def _add(left: Any, right: Any) -> Any:
    if left is None or right is None:
        return right if left is None else left
    return tf.convert_to_tensor(left) + tf.convert_to_tensor(right)
