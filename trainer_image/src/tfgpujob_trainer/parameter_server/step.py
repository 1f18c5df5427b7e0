"""One step as a worker computes it, and one batch of an evaluation.

A step reads the variables from the parameter servers, computes the gradient of one whole batch, and applies it with the
optimizer where the variables are. The gradient of an embedding is sent as the rows that it touches. The chief fetches
one small vector from each step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfgpujob_contract.strategies import Strategy
from tfgpujob_trainer.contract.support import require
from tfgpujob_trainer.model.batch import Batch, unpack, weigher
from tfgpujob_trainer.model.loss import LossParts, LossSums, grouped, loss_of, mean_loss, numbers_of, total_loss
from tfgpujob_trainer.model.metrics import results
from tfgpujob_trainer.model.moving_statistics import is_of_author
from tfgpujob_trainer.model.optimizer_takeover import OptimizerTakeover
from tfgpujob_trainer.model.variables import PlainVariable
from tfgpujob_trainer.parameter_server.embedding_lookup import look_up_on_servers
from tfgpujob_trainer.parameter_server.rows import read_batch
from tfgpujob_trainer.step.compiled import as_traced

_NOTE = "asynchronous: each step is one global batch on one worker, and workers do not wait for each other"


@dataclass(frozen=True, slots=True)
class Sums:
    """The contribution of a batch: (numerator, normaliser) of each part of the loss, the state of the metrics, and the
    seconds that its worker waited for its rows."""

    loss: LossSums
    metrics: list[np.ndarray]
    read_seconds: float


class ServerSteps:
    """Training and evaluation steps of a model whose variables are on parameter servers.

    `train` and `evaluate` take (split, epoch, index) and return the vector that `sums` reads.
    """

    def __init__(
        self,
        strategy: tf.distribute.ParameterServerStrategy,
        model: keras.Model,
        takeover: OptimizerTakeover,
        spec: Any,
        fingerprint: str,
        *,
        seed: int = 0,
        first_epoch: int = 0,
        class_weights: Mapping[str, float] | None = None,
    ) -> None:
        """`seed` is that of the rows' order; workers count the epochs of the training from the first one."""
        self._strategy, self._model, self._takeover = strategy, model, takeover
        self._spec, self._fingerprint, self._seed = spec, fingerprint, seed
        self._first_epoch = first_epoch
        self._weigh = weigher(class_weights or {})
        self._loss = LossParts(model)
        self._metrics = model.metrics_variables
        self._has_normaliser: list[bool] = []
        self.captured: list[PlainVariable] = []
        self.draws = False  # nothing is exact after a restart here
        self.notes = [_NOTE, *self._loss.notes, *_layer_notes(model)]
        self.train = self._compile(self._train_batch, training=True)
        self.evaluate = self._compile(self._evaluate_batch, training=False)
        look_up_on_servers(model)
        count_every_step(takeover.optimizer)

    def values(self, loss: LossSums, states: list[Any]) -> dict[str, Any]:
        """Loss and metrics from their sums."""
        return {"loss": mean_loss(loss) + self.regularisation(), **results(self._model, states)}

    def regularisation(self) -> float:
        """The current loss of the weight regularisers."""
        return float(self._loss.regularisation()) if self._loss.regularised else 0.0

    def sums(self, vector: np.ndarray) -> Sums:
        """The contribution in a batch's vector."""
        numbers = iter(vector.tolist())
        seconds = next(numbers)
        loss = loss_of(numbers, self._has_normaliser)
        states = [
            np.array([next(numbers) for _ in range(math.prod(v.shape))]).reshape(v.shape).astype(v.dtype)
            for v in self._metrics
        ]
        return Sums(loss, states, seconds)

    def _compile(self, function: Any, *, training: bool) -> Any:
        numbers = [tf.TensorSpec([], tf.int32)] * 3

        @tf.function(autograph=False, input_signature=numbers)
        def step(split: Any, epoch: Any, index: Any) -> Any:
            with as_traced(self._model, self._spec, training=training):
                return self._strategy.run(function, args=(split, epoch, index))

        return step

    def _train_batch(self, split: Any, epoch: Any, index: Any) -> Any:
        batch, seconds = self._read(split, epoch - self._first_epoch, index)
        batch = self._weigh(batch)
        variables = self._model.trainable_variables
        with tf.GradientTape() as tape:
            y_pred = self._model(batch[0], training=True)
            groups = list(grouped(self._loss(batch, y_pred, training=True)).values())
            loss = total_loss(groups)
            if self._loss.regularised:
                loss += tf.cast(self._loss.regularisation(), loss.dtype)
            loss = self._takeover.optimizer.scale_loss(loss)
        gradients = tape.gradient(loss, variables)
        # Weight decay and the count of steps need no gradient: without this they are done before the rows are there,
        # and once more where another worker takes over the batch.
        with tf.control_dependencies([gradient for gradient in gradients if gradient is not None]):
            self._takeover.apply(gradients, variables)
        return self._vector(batch, y_pred, groups, seconds)

    def _evaluate_batch(self, split: Any, epoch: Any, index: Any) -> Any:
        batch, seconds = self._read(split, epoch, index)
        y_pred = self._model(batch[0], training=False)
        groups = list(grouped(self._loss(batch, y_pred, training=False)).values())
        return self._vector(batch, y_pred, groups, seconds)

    def _read(self, split: Any, epoch: Any, index: Any) -> tuple[Batch, Any]:
        batch, seconds = read_batch((split, epoch, index), self._seed, self._fingerprint, self._spec)
        return unpack(batch), seconds

    def _vector(self, batch: Batch, y_pred: Any, groups: list[Any], seconds: Any) -> Any:
        self._has_normaliser = [d is not None for _, d in groups]
        numbers = [seconds, *numbers_of(groups), *self._count(batch, y_pred)]
        return tf.concat([tf.reshape(tf.cast(number, tf.float64), [-1]) for number in numbers], axis=0)

    def _count(self, batch: Batch, y_pred: Any) -> list[Any]:
        """The contribution of this batch to the metrics, from zero: workers that write to one shared state would lose
        rows.
        """
        fresh = [(v, tf.zeros(v.shape, v.dtype)) for v in self._metrics]
        with keras.StatelessScope(state_mapping=fresh) as scope:
            self._model.compute_metrics(batch[0], batch[1], y_pred, batch[2])
        return [scope.get_current_value(v) for v in self._metrics]


def count_every_step(optimizer: keras.optimizers.Optimizer) -> None:
    """Make the optimizer's step counter exact.

    Keras reads and writes it back, so one of two concurrent increments is lost (of 200 steps 152 were counted), which
    affects Adam and every schedule. The variable's own assign_add runs on the parameter server.
    """
    counter = optimizer.iterations
    counter.assign_add = lambda value: counter.value.assign_add(tf.cast(value, counter.dtype))


def _layer_notes(model: keras.Model) -> list[str]:
    """Notes about layers with a state of their own; raises ConfigError for those that would fail."""
    notes: list[str] = []
    for layer in model._flatten_layers():  # noqa: SLF001
        if isinstance(layer, keras.layers.BatchNormalization) and layer.trainable:
            prefix = "synchronized " if layer.synchronized else ""
            notes += require(f"{prefix}BatchNormalization", Strategy.PARAMETER_SERVER, layer.name)
        if is_of_author(layer) and layer._non_trainable_variables:  # noqa: SLF001
            notes += require("state of your own layers", Strategy.PARAMETER_SERVER, layer.name)
    return notes
