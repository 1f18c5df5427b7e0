"""The scope of the job's strategy, in which a script creates its models, and which a call of fit() leaves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest import mock

import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.framework import ops
from tensorflow.python.saved_model import load as saved_models

from tfgpujob_trainer.reporting.log import say


class JobScope:
    """Entered for the whole script. Inside it, reading a variable may be a collective, which only one worker would
    call.
    """

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        self.strategy = strategy
        self._entered: Any = None
        self._device: tuple[str, Any] = "", None

    def __enter__(self) -> JobScope:
        self._entered = self.strategy.scope()
        self._entered.__enter__()
        self._device = _device()
        return self

    def __exit__(self, *_: object) -> None:
        if self._entered is not None:
            entered, self._entered = self._entered, None
            _set_device(self._device)  # the script may be inside a tf.device() of its own
            entered.__exit__(None, None, None)

    @contextmanager
    def left(self) -> Iterator[None]:
        """Outside of it, as the trainer's loop is; a scope() that the script has entered in it does not count."""
        if self._entered is None:  # a callback of fit() calls evaluate(), say
            yield
            return
        scripts = _device()
        if scripts[0] != self._device[0]:
            say(f"tf.device({scripts[0]!r}) in the script is left out: the devices are the job's")
        self.__exit__()
        try:
            yield
        finally:
            self.__enter__()
            _set_device(scripts)


def _device() -> tuple[str, Any]:
    """The device of tf.device(), and the object by which TensorFlow checks whether scopes are nested."""
    found = context.context()
    return found.device_name, found.device_spec


def _set_device(device: tuple[str, Any]) -> None:
    context.context()._set_device(*device)  # noqa: SLF001 (TensorFlow is pinned)


@contextmanager
def sessions_cleared_outside(scope: JobScope) -> Iterator[None]:
    """keras.backend.clear_session() replaces the default graph, which has the scope, by a new one."""
    # Not tf.compat.v1.reset_default_graph, which an import of tensorflow.compat.v1 puts back.
    graphs = ops._default_graph_stack  # noqa: SLF001 (TensorFlow is pinned)
    original = graphs.reset

    def reset() -> None:
        with scope.left():
            original()

    with mock.patch.object(graphs, "reset", reset):
        yield


@contextmanager
def saved_models_loaded_outside(scope: JobScope) -> Iterator[None]:
    """In the scope of several replicas, only the strategy's own run() can call the functions of a saved model."""
    original = saved_models.load_partial

    def load(*args: Any, **kwargs: Any) -> Any:
        with scope.left() if scope.strategy.num_replicas_in_sync > 1 else nullcontext():
            return original(*args, **kwargs)

    # Not tf.saved_model.load, which an import of tensorflow.compat.v1 puts back, such as by Keras' export().
    with mock.patch.object(saved_models, "load_partial", load):
        yield


@contextmanager
def gradients_applied_outside() -> Iterator[None]:
    """A script may apply gradients between its calls of fit(): each worker does so, with the same gradients.

    Keras' optimizers need a replica for that, and outside a strategy's run() there is none.
    """
    interim = tf.__internal__.distribute.interim
    original = interim.maybe_merge_call

    def update(function: Any, strategy: tf.distribute.Strategy, *args: Any, **kwargs: Any) -> Any:
        if tf.distribute.in_cross_replica_context():
            return function(strategy, *args, **kwargs)
        return original(function, strategy, *args, **kwargs)

    with mock.patch.object(interim, "maybe_merge_call", update):
        yield
