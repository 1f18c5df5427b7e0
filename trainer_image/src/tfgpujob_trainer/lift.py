"""What the user's compiled model already says about a step: taken over, switched off there, done right here.

Keras clips on each replica before the gradients are summed, which is another computation than on one device.
So clipping moves behind the sum, and the optimizer only applies.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from tfgpujob_trainer.exits import ConfigError

_CLIPS = ("clipnorm", "global_clipnorm", "clipvalue")


@dataclass(frozen=True, slots=True)
class Clip:
    """Gradient clipping in Keras' three forms; applied to the gradients of the global batch."""

    kind: str
    value: float

    def __call__(self, gradients: Sequence[Any]) -> list[Any]:
        """Clip; None gradients pass through."""
        if self.kind == "global_clipnorm":
            return list(tf.clip_by_global_norm(gradients, self.value)[0])
        if self.kind == "clipnorm":
            return [None if g is None else tf.clip_by_norm(g, self.value) for g in gradients]
        return [None if g is None else tf.clip_by_value(g, -self.value, self.value) for g in gradients]


@dataclass(frozen=True, slots=True)
class Lifted:
    """What was taken over from the optimizer, and how to say so."""

    clip: Clip | None
    original: dict[str, Any]

    @property
    def notes(self) -> list[str]:
        """One line for each thing done here instead of in the optimizer."""
        if self.clip is None:
            return []
        return [f"{self.clip.kind}={self.clip.value:g}: applied after the all-reduce, to the global gradient"]


def lift(model: keras.Model) -> Lifted:
    """Take over what the optimizer says, and switch it and the optimizer's own reduction off.

    Raises ConfigError for what this version would not do right.
    """
    _refuse_model(model)
    _refuse_optimizer(model)
    optimizer = model.optimizer
    original = {name: getattr(optimizer, name) for name in _CLIPS}
    clips = [Clip(name, float(value)) for name, value in original.items() if value]
    for name in _CLIPS:
        setattr(optimizer, name, None)
    if not hasattr(optimizer, "_all_reduce_sum_gradients"):
        raise RuntimeError("Keras' optimizer has no _all_reduce_sum_gradients: this trainer needs Keras 3.15.1")
    optimizer._all_reduce_sum_gradients = lambda pairs: pairs  # noqa: SLF001 (private: Keras is pinned)
    return Lifted(clips[0] if clips else None, original)


@contextmanager
def as_compiled(model: keras.Model, lifted: Lifted) -> Iterator[None]:
    """The model as its author compiled it, while it is exported."""
    for name, value in lifted.original.items():
        setattr(model.optimizer, name, value)
    try:
        yield
    finally:
        for name in lifted.original:
            setattr(model.optimizer, name, None)


def _refuse_model(model: Any) -> None:
    if not isinstance(model, keras.Model):
        raise ConfigError(f"model() returned a {type(model).__name__}", "return a compiled keras.Model")
    if type(model).train_step is not keras.Model.train_step:
        raise ConfigError(
            f"{type(model).__name__} overrides train_step", "run it as your own script: remove spec.trainer"
        )
    if not model.compiled or model.optimizer is None:
        raise ConfigError("model() returned a model that is not compiled", "call model.compile() in model()")
    for loss in keras.tree.flatten(model.loss):
        if isinstance(loss, keras.losses.Loss) and loss.reduction in (None, "none"):
            raise ConfigError(
                f"loss {loss.name!r} has reduction='none'", "use reduction='sum_over_batch_size' or 'sum'"
            )
    if model.steps_per_execution > 1:
        raise ConfigError("compile(steps_per_execution) is not run by this version", "remove it from compile()")
    if model.run_eagerly:
        raise ConfigError("compile(run_eagerly=True) is not run by this trainer", "remove it from compile()")


def _refuse_optimizer(model: Any) -> None:
    optimizer = model.optimizer
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer) or model.dtype_policy.name == "mixed_float16":
        raise ConfigError("mixed_float16 and a loss scale are not run by this version", "use mixed_bfloat16 or float32")
    unsupported = {
        "gradient_accumulation_steps": "remove it and choose a smaller globalBatchSize",
        "use_ema": "remove it from the optimizer",
        "loss_scale_factor": "remove it from the optimizer",
    }
    for name, fix in unsupported.items():
        if getattr(optimizer, name, None):
            raise ConfigError(f"the optimizer's {name} is not run by this version", fix)
