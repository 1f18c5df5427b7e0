"""The loss as sums: numerators and the normalisers they are divided by, once, for the whole global batch.

A mean of the workers' means is wrong as soon as their batches differ in what the loss divides by: rows,
positions, valid tokens under a mask, the sum of the sample weights. So each part of the loss is kept as a
numerator and a normaliser, both are summed over all replicas, and only then divided. Parts that divide by
the same thing share a group; each group has its own gradient sum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend import get_keras_mask
from keras.src.losses import loss as keras_loss

from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.model.batch import Batch

ROWS = "rows"
"""The group of everything that is a mean over rows."""
SUM = "sum"
"""The group of losses that are sums: divided by nothing."""

LossSums = tuple[tuple[float, float | None], ...]
"""(numerator sum, normaliser sum) of each part of the loss; a plain sum has no normaliser."""


@dataclass(frozen=True, slots=True)
class Part:
    """One numerator with its normaliser (None for a plain sum) and the group that shares it."""

    group: str
    numerator: Any
    normaliser: Any
    name: str | None = None
    """Name of a value that its author returns as one number for a batch: only a trial shows whether it is a mean or a
    sum of rows."""

    @property
    def value(self) -> Any:
        """As its author gives it."""
        return self.numerator if self.normaliser is None else _divide(self.numerator, self.normaliser)


def stop_keras_scaling_by_replicas() -> None:
    """Keras divides every loss by the number of replicas; here the sums are divided, once.

    Private names of the pinned Keras; a test fails when they are gone.
    """
    for name in ("scale_loss_for_distribution", "unscale_loss_for_distribution"):
        if not hasattr(keras_loss, name):
            raise RuntimeError(f"keras.src.losses.loss.{name} is gone: this trainer needs Keras 3.15.1")
        setattr(keras_loss, name, lambda value: value)


class _Recorder:
    """Replaces one compiled loss, and records the numerator and normaliser of its value.

    `metric` is the mean that Keras keeps of the loss of one of several outputs, without the output's weight.
    """

    def __init__(self, name: str, loss: Any, weight: float | None, metric: Any, owner: LossParts) -> None:
        self._name, self._loss, self._weight, self._owner = name, loss, weight, owner
        self.metric, self.measures, self.adds_up = metric, True, False
        self._update = None if metric is None else metric.update_state
        if metric is not None:
            # Keras would count each batch of each replica alike, whatever it divides by.
            metric.update_state = lambda *_, **__: None

    def give_back(self) -> Any:
        """The loss that it stands in for; its metric counts for Keras again."""
        if self.metric is not None:
            del self.metric.update_state
        return self._loss

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        part = split(self._loss, y_true, y_pred, sample_weight, name=self._name, number=self._owner.number)
        self.adds_up, value = part.normaliser is None, part.value
        if self._update is not None and self.measures:
            self._update(value, sample_weight=part.normaliser)
        if self._weight is not None:
            part = replace(part, numerator=part.numerator * self._weight)
        self._owner.parts.append(part)
        return value


class LossParts:
    """Computes the compiled loss of a built model as parts."""

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        self.parts: list[Part] = []
        """Parts of the compiled losses, as they are computed."""
        self.sums: dict[bool, set[str]] = {True: set(), False: set()}
        """Names of the numbers that are sums over rows, in training and in evaluations; others are means."""
        self._training = True
        self._recorders: list[_Recorder] = []
        self._custom = type(model).compute_loss is not keras.Model.compute_loss
        compiled = model._compile_loss  # noqa: SLF001 (Keras offers no public way to the compiled losses)
        if compiled is not None and not self._custom:
            losses = compiled._flat_losses  # noqa: SLF001
            metrics = compiled.metrics or [None] * len(losses)
            self._recorders = [
                _Recorder(f"loss {i} ({one.name})", one.loss, one.loss_weights, metric, self)
                for i, (one, metric) in enumerate(zip(losses, metrics, strict=True), 1)
            ]
            compiled._flat_losses = [  # noqa: SLF001
                one._replace(loss=recorder) for one, recorder in zip(losses, self._recorders, strict=True)
            ]
        self.regularised = [v for v in model.trainable_variables if v.regularizer is not None and not self._custom]
        """The weights whose regularisers count beside the loss. A compute_loss() of its own has them in its value, if
        they are to count."""

    def of_batch(self, states: list[Any]) -> list[Any]:
        """What a step has counted, on all replicas, with each output's loss as one number that counts once.

        So does Keras count it, whatever the number of its rows.
        """
        places, states = {id(v): i for i, v in enumerate(self._model.metrics_variables)}, list(states)
        for recorder in self._recorders:
            if recorder.metric is not None:
                total, count = (places[id(variable)] for variable in recorder.metric.variables)
                value = states[total] if recorder.adds_up else _divide(states[total], states[count])
                states[total], states[count] = value, tf.ones_like(states[count])
        return states

    @property
    def has_outputs(self) -> bool:
        """Whether the loss of each of several outputs is measured."""
        return any(recorder.metric is not None for recorder in self._recorders)

    @contextmanager
    def unmeasured(self) -> Iterator[None]:
        """While it is computed to look at, and the metrics of several outputs' losses are to keep what they have."""
        for recorder in self._recorders:
            recorder.measures = False
        try:
            yield
        finally:
            for recorder in self._recorders:
                recorder.measures = True

    @property
    def notes(self) -> list[str]:
        """Log lines about how the loss is read."""
        if self._custom and not self.sums[True]:
            return ["compute_loss is overridden: its value is taken as a mean over the rows of the batch"]
        return []

    def __call__(self, batch: Batch, y_pred: Any, *, training: bool) -> list[Part]:
        """The parts of the loss of one replica's rows, without the weight regularisers.

        Raises ConfigError if there are none: neither compiled, nor added by a layer.
        """
        x, y, sample_weight = batch
        rows = tf.shape(tf.nest.flatten(x)[0])[0]
        self._training = training
        if self._custom:
            value = self._model._compute_loss(x, y, y_pred, sample_weight, training=training)  # noqa: SLF001
            return [self.number("compute_loss()", value, rows)]
        self.parts.clear()
        if self._recorders:
            self._model._compile_loss(y, y_pred, sample_weight)  # noqa: SLF001
        added = self._model.losses
        added = added[: len(added) - len(self.regularised)]
        numbers = [(f"add_loss() number {i}", tf.reduce_sum(value)) for i, value in enumerate(added, 1)]
        parts = [*self.parts, *(self.number(name, value, rows) for name, value in numbers)]
        if not parts:
            raise ConfigError(
                "the model is compiled without a loss", "give model.compile() a loss, or a layer an add_loss()"
            )
        return parts

    def number(self, name: str, value: Any, rows: Any) -> Part:
        """What is one number for these rows."""
        if name in self.sums[self._training]:
            return Part(SUM, value, None, name)
        count = tf.cast(rows, value.dtype)
        # A mean over no rows is not a number; it counts for nothing.
        return Part(ROWS, tf.where(rows > 0, value * count, tf.zeros_like(value)), count, name)

    def regularisation(self) -> Any:
        """The weight regularisers: a function of the weights alone, so the same on every replica."""
        return tf.add_n([tf.convert_to_tensor(v.regularizer(v)) for v in self.regularised])


def give_back_losses(model: keras.Model) -> None:
    """Let the model compute its compiled losses itself again."""
    compiled = model._compile_loss  # noqa: SLF001
    if compiled is not None and compiled.built:
        compiled._flat_losses = [  # noqa: SLF001
            one._replace(loss=one.loss.give_back()) if isinstance(one.loss, _Recorder) else one
            for one in compiled._flat_losses  # noqa: SLF001
        ]


def split(
    loss: Any, y_true: Any, y_pred: Any, sample_weight: Any, *, name: str, number: Callable[[str, Any, Any], Part]
) -> Part:
    """`loss` as numerator and normaliser, by the rules of its own `reduction`; by `number` if it returns one number."""
    dtype = loss.dtype
    y_pred_mask = get_keras_mask(y_pred)
    y_pred = tf.nest.map_structure(lambda t: tf.cast(t, dtype), y_pred)
    y_true = tf.nest.map_structure(lambda t: tf.cast(t, dtype), y_true)
    values = loss.call(y_true, y_pred)
    masks = [m for m in (y_pred_mask, get_keras_mask(values)) if m is not None]
    mask = None if not masks else masks[0] if len(masks) == 1 else masks[0] & masks[1]
    if values.shape.rank == 0:  # which Keras multiplies by the weight of each row
        value = keras_loss.reduce_weighted_values(values, sample_weight, mask, loss.reduction, dtype)
        return number(name, value, tf.shape(tf.nest.flatten(y_pred)[0])[0])
    numerator = keras_loss.reduce_weighted_values(values, sample_weight, mask, "sum", dtype)
    if loss.reduction == "sum":
        return Part(SUM, numerator, None)
    if loss.reduction == "mean_with_sample_weight" and not (sample_weight is None and mask is None):
        weights = keras_loss.apply_mask(
            None if sample_weight is None else tf.cast(sample_weight, dtype), mask, dtype, "sum"
        )
        return Part(name, numerator, tf.reduce_sum(weights))
    if mask is not None:
        positions = tf.cast(tf.size(values), dtype) / tf.cast(tf.size(mask), dtype)
        return Part(name, numerator, tf.reduce_sum(tf.cast(mask, dtype)) * positions)
    per_row = values.shape[1:].num_elements()
    if per_row is None:
        return Part(name, numerator, tf.cast(tf.size(values), dtype))
    return Part(ROWS, numerator / tf.cast(per_row, dtype), tf.cast(tf.shape(values)[0], dtype))


def grouped(parts: list[Part]) -> dict[str, tuple[Any, Any]]:
    """Parts summed by group: one numerator and one normaliser each."""
    groups: dict[str, tuple[Any, Any]] = {}
    for part in parts:
        if part.group in groups:
            numerator, normaliser = groups[part.group]
            groups[part.group] = (numerator + tf.cast(part.numerator, numerator.dtype), normaliser)
        else:
            groups[part.group] = (part.numerator, part.normaliser)
    return groups


def total_loss(groups: Iterable[tuple[Any, Any]]) -> Any:
    """The loss, of all groups. A normaliser may be None: its numerator counts as it is."""
    parts = [n if d is None else _divide(n, d) for n, d in groups]
    return tf.add_n([tf.cast(part, keras.config.floatx()) for part in parts])


def numbers_of(groups: Iterable[tuple[Any, Any]]) -> list[Any]:
    """Numerators and normalisers in a row, without those that are None."""
    return [number for group in groups for number in group if number is not None]


def loss_of(numbers: Iterator[float], has_normaliser: Iterable[bool]) -> LossSums:
    """What `numbers_of` put in a row."""
    return tuple((next(numbers), next(numbers) if has else None) for has in has_normaliser)


def add_loss(total: LossSums, more: LossSums) -> LossSums:
    """`total` with the sums of one more batch."""
    if not total:
        return more
    return tuple(
        (n0 + n1, None if d0 is None or d1 is None else d0 + d1) for (n0, d0), (n1, d1) in zip(total, more, strict=True)
    )


def add_step(total: LossSums, step: LossSums, rows: int) -> LossSums:
    """`total` with the loss of one more batch of that many rows: their mean by rows is Keras' loss of an epoch.

    Each batch has its own normalisers, such as the number of its valid tokens.
    """
    ((numerator, normaliser),) = total or ((0.0, 0.0),)
    return ((numerator + mean_loss(step) * rows, (normaliser or 0.0) + rows),)


def mean_loss(loss: LossSums) -> float:
    """The sums as one loss."""
    return sum(n if d is None else n / d if d else 0.0 for n, d in loss)


def _divide(numerator: Any, normaliser: Any) -> Any:
    return tf.math.divide_no_nan(numerator, tf.cast(normaliser, numerator.dtype))
