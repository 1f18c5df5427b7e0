"""`jit: replica`: XLA compiles the forward and backward pass of each replica, and the update; collectives stay outside.

A GPU is sent each operation by itself, some 10 µs each: a step of a small model is as long as it has operations, and an
optimizer has a dozen for each variable. Compiled, there are two. On an H200, Keras' fit() of a transformer took 13 ms a
step with XLA and 66 without (docs/gpu.md).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf
from keras.src.trainers.trainer import Trainer, model_supports_jit

from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.contract.support import require
from tfgpujob_trainer.model.variables import LayerState
from tfgpujob_trainer.reporting.log import say
from tfgpujob_trainer.step.compiled import Step, StepResult

_UNSUPPORTED = re.compile(
    r"^(?>.*?unsupported operations when trying to compile graph ).*? on \w+: (\w+)", re.MULTILINE
)

_AUTO = "_jit_is_auto"


def jitted(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` of a replica, compiled separately for each traced replica, because each has variables of its own."""

    def compiled(*args: Any) -> Any:
        return tf.function(function, jit_compile=True, autograph=False)(*args)

    return compiled


def jitted_update(strategy: tf.distribute.Strategy, update: Callable[..., Any]) -> Callable[..., Any]:
    """`update` of a replica, compiled, if this worker has no other one, which would have variables of its own.

    It runs in the context of all replicas: there Keras' optimizer waits for no other replica, which XLA could not
    compile.
    """
    if len(strategy.extended.worker_devices) > 1:
        return update

    def of_all(strategy: tf.distribute.Strategy, *args: Any) -> Any:
        with tf.device(strategy.extended.worker_devices[0]), _without_merge_calls(strategy.extended):
            return tf.function(update, jit_compile=True, autograph=False)(*args)

    return lambda *args: tf.distribute.get_replica_context().merge_call(of_all, args=args)


@contextmanager
def _without_merge_calls(extended: Any) -> Iterator[None]:
    """Have Keras' optimizer do at once what it would do in a merge_call(), as TensorFlow has it for XLA on GPUs."""
    extended._use_merge_call = lambda: False  # noqa: SLF001 (private: TensorFlow is pinned)
    try:
        yield
    finally:
        del extended._use_merge_call  # noqa: SLF001


def wanted(setting: str | None, strategy: tf.distribute.Strategy, model: keras.Model) -> bool:
    """True if XLA compiles the step: by the job's setting, or else as in Keras' own fit(), on GPUs.

    On CPUs a step takes longer with it. XLA lacks some deterministic operations, so Keras does without it then.
    """
    if setting is not None:
        return setting == "replica"
    if not on_gpus(strategy) or (_synchronized(model) and strategy.num_replicas_in_sync > 1):
        return False
    return bool(model.jit_compile or getattr(model, _AUTO, False)) and model_supports_jit(model)


def remember_auto() -> None:
    """Record that compile() left XLA to Keras, which never uses it under a strategy.

    A private name of the pinned Keras; a test fails when it is gone.
    """
    compile_, resolve = Trainer.compile, Trainer._resolve_auto_jit_compile  # noqa: SLF001

    @functools.wraps(compile_)
    def compiled(model: keras.Model, *args: Any, **kwargs: Any) -> None:
        setattr(model, _AUTO, False)
        compile_(model, *args, **kwargs)

    def resolved(model: keras.Model) -> bool:
        setattr(model, _AUTO, True)
        return bool(resolve(model))

    Trainer.compile = compiled
    Trainer._resolve_auto_jit_compile = resolved  # noqa: SLF001


def on_gpus(strategy: tf.distribute.Strategy) -> bool:
    """Whether all replicas of this worker compute on GPUs."""
    return all("GPU" in device for device in strategy.extended.worker_devices)


def _synchronized(model: keras.Model) -> list[str]:
    """The layers with a collective in them."""
    return [
        layer.name
        for layer in model._flatten_layers()  # noqa: SLF001
        if isinstance(layer, keras.layers.BatchNormalization) and layer.synchronized and layer.trainable
    ]


def jitted_notes(model: keras.Model, strategy: str) -> list[str]:
    """What to say about compiling this model; raises ConfigError where it is known to fail."""
    for name in _synchronized(model):
        require("jit of synchronized BatchNormalization", strategy, name)
    draws = any(layer._seed_generators for layer in model._flatten_layers())  # noqa: SLF001
    return [
        "jit: XLA compiles the forward and backward pass, and the update, at the first step",
        *(["jit: XLA draws other random numbers than TensorFlow, from the same seeds"] if draws else []),
    ]


class WithXla:
    """A step that XLA compiles; if XLA lacks an operation, the `plain` one replaces it, unless it `must`."""

    def __init__(self, model: keras.Model, compiled: Step, plain: Step, *, must: bool) -> None:
        self._model, self.step, self._plain, self._must = model, compiled, plain, must
        self._compiles = False

    def __call__(self, *args: Any, **kwargs: Any) -> StepResult:
        """See Compiled."""
        if self._compiles:
            return self.step(*args, **kwargs)
        state = LayerState(self._model)
        try:
            return self.step(*args, **kwargs)
        except tf.errors.InvalidArgumentError as error:
            if "XLA" not in error.message:
                raise
            found = _UNSUPPORTED.search(error.message)
            what = f"the operation {found.group(1)}" if found else "this model"
            if self._must:
                raise ConfigError(f"trainer.jit is replica, and XLA cannot compile {what}", "set jit: none") from error
            say(f"jit: XLA cannot compile {what}: it is computed without")
            state.put_back()
            self.step = self._plain
            return self.step(*args, **kwargs)
        finally:
            self._compiles = True
