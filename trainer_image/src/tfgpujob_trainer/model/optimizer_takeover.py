"""Optimizer takeover: what the compiled Keras optimizer does to gradients is switched off and done here instead.

Keras clips on each replica before it sums the gradients, which differs from one device. Here the optimizer gets summed
gradients, and its own reduction is switched off. Loss scaling and accumulation are done around the all-reduce.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from tfgpujob_contract.strategies import Strategy
from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.contract.support import require
from tfgpujob_trainer.model.optimizers import leave_reduction, optimizers_of

_CLIPS = ("clipnorm", "global_clipnorm", "clipvalue")
_APPLY = "_backend_apply_gradients"
_TAKEN_OVER = ("gradient_accumulation_steps", "ema_overwrite_frequency")


@dataclass(frozen=True, slots=True)
class LossScale:
    """The state of Keras' LossScaleOptimizer, used as rule 5 has it: whether a step counts is decided on
    gradients after the all-reduce, so every replica takes the same branch."""

    state: keras.optimizers.LossScaleOptimizer

    @property
    def value(self) -> Any:
        """What the loss is multiplied by before the backward pass."""
        return tf.convert_to_tensor(self.state.dynamic_scale)

    def grow(self) -> None:
        """After a step with finite gradients: double the scale every `dynamic_growth_steps`."""
        counter, scale = self.state.step_counter, self.state.dynamic_scale
        due = tf.equal(tf.convert_to_tensor(counter) + 1, self.state.dynamic_growth_steps)
        counter.assign(tf.where(due, tf.zeros_like(counter.value), counter.value + 1))
        scale.assign(tf.where(due, scale.value * 2.0, scale.value))

    def shrink(self) -> None:
        """After an overflow: halve the scale."""
        self.state.step_counter.assign(tf.zeros_like(self.state.step_counter.value))
        self.state.dynamic_scale.assign(self.state.dynamic_scale.value * 0.5)


@dataclass(frozen=True, slots=True)
class Averages:
    """Overwrites the weights with their moving averages at the optimizer's interval; Keras' own way to do it fails
    inside a replica. The averages themselves are kept by the optimizer."""

    optimizer: keras.optimizers.Optimizer
    every_steps: int

    def overwrite_if_due(self, variables: Sequence[Any]) -> None:
        """Call it after each applied step."""
        due = tf.equal(tf.convert_to_tensor(self.optimizer.iterations) % self.every_steps, 0)
        averages = self.optimizer._model_variables_moving_average  # noqa: SLF001 (private: Keras is pinned)

        def overwrite() -> Any:
            for variable, average in zip(variables, averages, strict=True):
                variable.assign(average.value)
            return tf.constant(True)

        tf.cond(due, overwrite, lambda: tf.constant(False))


@dataclass(frozen=True, slots=True)
class SeveralBatches:
    """Keras' gradient_accumulation_steps: the optimizer gets the mean of the gradients of several batches. It keeps
    their sums itself; Keras' own way to add them fails inside a replica."""

    optimizer: keras.optimizers.Optimizer
    steps: int

    def due(self) -> Any:
        """Whether this batch is the last one of a mean."""
        return tf.equal((tf.convert_to_tensor(self.optimizer._iterations) + 1) % self.steps, 0)  # noqa: SLF001

    def add(self, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        """Count a batch before."""
        for kept, gradient in self._pairs(gradients, variables):
            kept.assign_add(tf.convert_to_tensor(gradient))
        self.optimizer._iterations.assign_add(1)  # noqa: SLF001

    def mean(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """The mean with those of the last batch; the next one begins at zero."""
        found = {
            id(kept): (tf.convert_to_tensor(gradient) + tf.convert_to_tensor(kept.value)) / self.steps
            for kept, gradient in self._pairs(gradients, variables)
        }
        for kept, _ in self._pairs(gradients, variables):
            kept.assign(tf.zeros_like(found[id(kept)]))
        return [None if g is None else found[id(self._kept(v))] for g, v in zip(gradients, variables, strict=True)]

    def apply(self, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        """In place of the optimizer's `_backend_apply_gradients`: what that does with a mean."""
        optimizer = self.optimizer
        gradients = optimizer._clip_gradients(gradients)  # noqa: SLF001 (private: Keras is pinned)
        optimizer._apply_weight_decay(variables)  # noqa: SLF001
        optimizer._backend_update_step(gradients, variables, optimizer.learning_rate)  # noqa: SLF001

    def _pairs(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[tuple[Any, Any]]:
        return [(self._kept(v), g) for g, v in zip(gradients, variables, strict=True) if g is not None]

    def _kept(self, variable: Any) -> Any:
        return self.optimizer._accumulated_gradients[self.optimizer._get_variable_index(variable)]  # noqa: SLF001


@dataclass(frozen=True, slots=True)
class OptimizerTakeover:
    """What was taken over from the optimizer, with log lines. `optimizer` is the one that applies."""

    optimizer: keras.optimizers.Optimizer
    loss_scale: LossScale | None
    accumulate: int
    averages: Averages | None
    original: dict[str, Any]
    several: SeveralBatches | None = None

    @property
    def notes(self) -> list[str]:
        """One line for each thing done here instead of in the optimizer."""
        notes = []
        for clip in _CLIPS:
            value = getattr(self.optimizer, clip)
            if value:
                notes.append(f"{clip}={value:g}: applied after the all-reduce, to the global gradient")
        if self.loss_scale is not None:
            notes.append("loss scale: a step with an overflow on any replica is skipped on all of them")
        if self.several is not None:
            notes.append(
                f"gradient_accumulation_steps={self.several.steps}: the optimizer gets the mean of as many steps"
            )
        elif self.original.get("gradient_accumulation_steps"):
            notes.append(f"gradient_accumulation_steps={self.accumulate}: micro-batches of each global batch")
        return notes

    @property
    def loss_factor(self) -> Any:
        """What the optimizer's `scale_loss` multiplies a loss by, and so its gradients; None where it leaves it."""
        one = tf.ones([], keras.config.floatx())
        scaled = one if self.loss_scale is not None else self.optimizer.scale_loss(one)
        return None if scaled is one else scaled

    def apply(self, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        """Apply the gradients of a global batch by the method that Keras calls, since a subclass may override it.

        Keras' train_step calls `apply_gradients`, but its LossScaleOptimizer calls `apply` of the one that it wraps.
        """
        if self.loss_scale is None:
            self.optimizer.apply_gradients(zip(gradients, variables, strict=True))
        else:
            self.optimizer.apply(gradients, variables)


def take_over_optimizer(
    model: keras.Model, strategy: str, accumulate: int | None = None, *, of_script: bool = False
) -> OptimizerTakeover:
    """Take over the optimizer's settings, and switch them and its own reduction off.

    `strategy` is its name in SUPPORT, `accumulate` what the configuration says. In a script, an optimizer that
    accumulates gradients does so over its batches; in a module, over the parts of each. Raises ConfigError if the
    optimizer says another number, and for what this version would not do right.
    """
    _refuse(model, strategy)
    scaler = model.optimizer if isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer) else None
    optimizer = model.optimizer if scaler is None else scaler.inner_optimizer
    original = {name: getattr(optimizer, name) for name in _TAKEN_OVER}
    several = _several_batches(optimizer, scaler, strategy) if of_script else None
    compiled = original["gradient_accumulation_steps"] if several is None else None
    for technique, who, wanted in (
        ("gradient accumulation", "gradient accumulation", (accumulate or compiled or 1) > 1),
        ("mixed_float16", "mixed_float16 with its loss scale", scaler is not None),
        ("moving averages of the weights (EMA)", "use_ema=True", optimizer.use_ema),
    ):
        if wanted:
            require(technique, strategy, who)
    if compiled and accumulate and compiled != accumulate:
        raise ConfigError(
            f"the optimizer says gradient_accumulation_steps={compiled}, trainer.accumulate is {accumulate}",
            "say it in one place",
        )
    for name in _TAKEN_OVER:
        if several is None or name != "gradient_accumulation_steps":  # else `iterations` counts the means
            setattr(optimizer, name, None)
    leave_reduction(optimizers_of(model))
    if strategy == Strategy.PARAMETER_SERVER:
        _clip_rows(optimizer)
    return OptimizerTakeover(
        optimizer,
        None if scaler is None else LossScale(scaler),
        accumulate or compiled or 1,
        Averages(optimizer, original["ema_overwrite_frequency"]) if original["ema_overwrite_frequency"] else None,
        original if several is None else {"ema_overwrite_frequency": None},
        several,
    )


def _several_batches(optimizer: Any, scaler: Any, strategy: str) -> SeveralBatches | None:
    steps = optimizer.gradient_accumulation_steps
    if not steps:
        return None
    for wanted, what in (
        (scaler is not None, "a loss scale"),
        (optimizer.use_ema, "use_ema=True"),
        (strategy == Strategy.PARAMETER_SERVER, "the strategy ParameterServer"),
    ):
        if wanted:
            raise ConfigError(
                f"the optimizer says gradient_accumulation_steps={steps}, with {what}",
                f"leave it out and make batches {steps} times as large; trainer.accumulate: {steps} computes a part of "
                "each at a time",
            )
    several = SeveralBatches(optimizer, steps)
    optimizer._backend_apply_gradients = several.apply  # noqa: SLF001
    return several


@contextmanager
def as_compiled(takeover: OptimizerTakeover) -> Iterator[None]:
    """The model as its author compiled it, while it is exported."""
    for name, value in takeover.original.items():
        setattr(takeover.optimizer, name, value)
    try:
        yield
    finally:
        for name in takeover.original:
            setattr(takeover.optimizer, name, None)


def give_back_optimizers(model: keras.Model, takeover: OptimizerTakeover) -> None:
    """Restore all of them, as their author compiled them."""
    for name, value in takeover.original.items():
        setattr(takeover.optimizer, name, value)
    for optimizer in optimizers_of(model).values():
        for name in ("apply", "apply_gradients", "_all_reduce_sum_gradients", "_clip_gradients", _APPLY):
            vars(optimizer).pop(name, None)


def _clip_rows(optimizer: keras.optimizers.Optimizer) -> None:
    """Leave the gradient of an embedding its rows: Keras' own global_clipnorm makes the whole table of them."""
    if optimizer.global_clipnorm:
        optimizer._clip_gradients = lambda gradients: tf.clip_by_global_norm(gradients, optimizer.global_clipnorm)[0]  # noqa: SLF001


def _refuse(model: Any, strategy: str) -> None:
    if not isinstance(model, keras.Model):
        raise ConfigError(f"model() returned a {type(model).__name__}", "return a compiled keras.Model")
    name = type(model).__name__
    if type(model).train_step is not keras.Model.train_step:
        require("own train_step", strategy, name)
    if not model.compiled or model.optimizer is None:
        raise ConfigError("the model is not compiled", "call model.compile()")
    kind = type(model.optimizer)
    if issubclass(kind, keras.optimizers.LossScaleOptimizer) and kind is not keras.optimizers.LossScaleOptimizer:
        raise ConfigError(
            f"{kind.__name__} overrides LossScaleOptimizer, whose work is done around the all-reduce",
            "use keras.optimizers.LossScaleOptimizer itself",
        )
    for loss in keras.tree.flatten(model.loss):
        if isinstance(loss, keras.losses.Loss) and loss.reduction in (None, "none"):
            require("an unreduced loss", strategy, f"loss {loss.name!r}")
    if model.run_eagerly:
        require("run_eagerly", strategy, name)
