"""Models with their own train_step() or test_step(): what is built, refused and restored around it."""

from __future__ import annotations

from typing import Any

import keras

from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.contract.support import require
from tfgpujob_trainer.model.optimizer_takeover import OptimizerTakeover
from tfgpujob_trainer.model.optimizers import leave_reduction, optimizers_of

_FUNCTIONS = {f"make_{kind}_function": f"{kind}_step" for kind in ("train", "test", "predict")}
_NEUTRAL: dict[str, Any] = {"gradient_accumulation_steps": None}


def has_own_steps(model: Any) -> bool:
    """Whether the model's class overrides one of them."""
    return isinstance(model, keras.Model) and any(
        getattr(type(model), name) is not getattr(keras.Model, name) for name in ("train_step", "test_step")
    )


def refuse_own_functions(model: Any) -> None:
    """Raise ConfigError for a model that makes the function of its steps by itself: it would not be called."""
    for name, step in _FUNCTIONS.items():
        if isinstance(model, keras.Model) and getattr(type(model), name) is not getattr(keras.Model, name):
            who = type(model).__name__
            raise ConfigError(f"{who} overrides {name}(), which the trainer does not call", f"override {step}()")


def leave_optimizers(model: keras.Model, strategy: str, accumulate: int | None) -> OptimizerTakeover:
    """Let the model's step use its optimizers as they are, but for their own all-reduce.

    Raises ConfigError for what cannot be done around a step that is not the trainer's.
    """
    who = type(model).__name__
    if strategy == "ParameterServer":
        require("own train_step", strategy, who)
    if not model.compiled or model.optimizer is None:
        raise ConfigError("the model is not compiled", "call model.compile()")
    if (accumulate or 1) > 1:
        raise ConfigError(
            f"trainer.accumulate is {accumulate}, and {who} has a train_step of its own", "set accumulate to 1"
        )
    if model.run_eagerly:
        require("run_eagerly", strategy, who)
    optimizers = optimizers_of(model)
    for optimizer in optimizers.values():
        if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
            raise ConfigError(f"{who} has a train_step of its own and a loss scale", "use mixed_bfloat16")
        for name in ("gradient_accumulation_steps", "ema_overwrite_frequency"):
            if getattr(optimizer, name):
                raise ConfigError(f"{who} has a train_step of its own and an optimizer with {name}", "remove it")
    leave_reduction(optimizers)
    return OptimizerTakeover(model.optimizer, None, 1, None, dict(_NEUTRAL))
