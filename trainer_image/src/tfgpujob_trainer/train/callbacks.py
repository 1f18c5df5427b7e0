"""The user's `callbacks()`: Keras callbacks that observe the training, on the chief alone.

Their hooks run at the beginning and end of training, at each epoch's end, and at each progress line instead of each
batch. They must not change the training, which would then change on one worker only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras

from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.train import csv_logs

HOOKS = (
    "on_train_begin",
    "on_train_end",
    "on_epoch_begin",
    "on_epoch_end",
    "on_train_batch_end",
    "on_test_begin",
    "on_test_end",
)
"""The hooks that are called; `on_train_batch_end` with the number of the step at each progress line."""
_ALIASES = ("on_batch_end",)
"""Keras' own on_train_batch_end calls it; trackers such as Weights & Biases and MLflow define only this one."""

_INSTEAD = {
    "EarlyStopping": "set trainer.best with a patience",
    "ModelCheckpoint": "set trainer.checkpoint, and trainer.best for the best one",
    "BackupAndRestore": "set trainer.checkpoint",
    "ReduceLROnPlateau": "give the optimizer a learning-rate schedule",
    "LearningRateScheduler": "give the optimizer a learning-rate schedule",
    "TensorBoard": "remove it: the output directory has tensorboard/ already",
    "SwapEMAWeights": "give the optimizer use_ema=True",
    "TerminateOnNaN": "remove it: a loss that is not finite ends the run",
    "ProgbarLogger": "remove it: the log has progress lines",
    "History": "remove it: the log and tensorboard/ have the history",
}


class BatchHooks:
    """The callbacks of an evaluation, as it uses them."""

    per_test_batch = False
    """Whether `test_batch_begin` and `test_batch_end` are called: reading each batch's numbers takes time."""

    def test_batch_begin(self, index: int) -> None:
        """Before each batch of an evaluation."""

    def test_batch_end(self, index: int, values: Mapping[str, Any]) -> None:
        """After each batch, with loss and metrics since the evaluation began."""


class Hooks(BatchHooks, ABC):
    """The callbacks of a run, as the training uses them."""

    per_batch = False
    """Whether `batch_begin` and `batch_end` are called."""
    variables: Sequence[Any] = ()
    """Those that the callbacks hold and the model doesn't, for checkpoints."""
    stops = False
    """True if training ends with the epoch that has just ended; the same on every worker."""

    @abstractmethod
    def __call__(self, hook: str, *arguments: Any) -> None:
        """Run a hook of all callbacks. Their exceptions pass through."""

    def validates(self, epoch: int) -> bool:  # noqa: ARG002
        """Whether the `validation` split may be evaluated after this number of epochs."""
        return True

    def set_before_step(self) -> bool:
        """Whether hooks have changed Python values that the step read, before its first batch: it is traced again."""
        return False

    def batch_begin(self, index: int) -> None:
        """Before each batch of an epoch."""

    def batch_end(self, index: int, values: Mapping[str, Any]) -> None:
        """After each batch, with loss and metrics since the epoch began."""

    def ends_epoch(self) -> bool:
        """Whether the epoch, and with it the training, ends with the last batch; the same on every worker."""
        return False

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Their state for a checkpoint, in JSON values and arrays."""

    @abstractmethod
    def chiefs_state(self) -> dict[str, Any]:
        """On the chief, the part of `state` that another worker lacks, in JSON values; empty if there is none."""

    @abstractmethod
    def resumed(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint's state when training begins."""


def check(callbacks: Any) -> list[keras.callbacks.Callback]:
    """The callbacks, if each can be run; raises ConfigError with the names of the others."""
    listed = list(callbacks) if isinstance(callbacks, list | tuple) else [callbacks]
    for callback in listed:
        name = type(callback).__name__
        if not isinstance(callback, keras.callbacks.Callback):
            raise ConfigError(f"callbacks() returned a {name}", "return a list of keras.callbacks.Callback")
        for known, fix in _INSTEAD.items():
            if isinstance(callback, getattr(keras.callbacks, known)):
                raise ConfigError(f"callbacks(): {name} cannot run with several workers", fix)
        for hook in _hooks(callback):
            if hook not in (*HOOKS, *_ALIASES):
                raise ConfigError(f"callbacks(): {name}.{hook} is never called", f"use one of {', '.join(HOOKS)}")
    return listed


def _hooks(callback: keras.callbacks.Callback) -> list[str]:
    """The hooks that the callback defines, in its class or set on it as LambdaCallback does."""
    base = keras.callbacks.Callback
    names = [name for name in vars(base) if name.startswith("on_")]
    return [n for n in names if n in vars(callback) or getattr(type(callback), n) is not getattr(base, n)]


def chiefs(make: Callable[[], Any], *, is_chief: bool, model: keras.Model, params: Mapping[str, Any]) -> Callbacks:
    """The result of `callbacks()` on the chief; no other worker calls it, because creating a tracker starts a run."""
    return Callbacks(check(make()) if is_chief else [], model, params)


class Callbacks(Hooks):
    """Calls the hooks; on every worker but the chief there are no callbacks."""

    def __init__(self, callbacks: Sequence[keras.callbacks.Callback], model: keras.Model, params: Mapping[str, Any]):
        self._callbacks, self._model = callbacks, model
        self._resumed: Mapping[str, Any] = {}
        for callback in callbacks:
            callback.set_params(dict(params))
            callback.set_model(model)

    def __call__(self, hook: str, *arguments: Any) -> None:
        """Run a hook of all callbacks.

        Their exceptions pass through. Raises ConfigError if one of them stops the training.
        """
        kept = self._resumed.get("csv", {}) if hook == "on_train_begin" else {}
        with csv_logs.continued(self._callbacks, kept):
            for callback in self._callbacks:
                getattr(callback, hook)(*arguments)
                if self._model.stop_training:
                    fix = "set trainer.best with a patience"
                    raise ConfigError(f"callbacks(): {type(callback).__name__} set model.stop_training", fix)

    def state(self) -> dict[str, Any]:
        """The rows that CSVLogger has written. Nothing else, because they only observe."""
        return {"csv": csv_logs.sizes(self._callbacks)}

    def chiefs_state(self) -> dict[str, Any]:
        """All of it."""
        return self.state() if self._callbacks else {}

    def resumed(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint's state when training begins."""
        self._resumed = state
