"""Keras' fit(), evaluate() and predict() with each step as one function over the mesh."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any
from unittest import mock

import keras
import numpy as np
import tensorflow as tf
from keras.src import metrics, tree
from keras.src.backend.tensorflow.trainer import TensorFlowTrainer
from keras.src.distribution.distribution_lib import distribution
from keras.src.layers.layer import Layer
from keras.src.trainers.compile_utils import CompileLoss
from keras.src.trainers.trainer import Trainer
from tensorflow.experimental import dtensor

from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.distribution.assignments import compiled
from tfgpujob_trainer.distribution.mesh import current_mesh, default_mesh
from tfgpujob_trainer.distribution.processes import agree
from tfgpujob_trainer.distribution.refusals import in_words
from tfgpujob_trainer.distribution.tensors import distribute_data_input, is_distributed, on_host, replicate, whole

_make_function = TensorFlowTrainer._make_function  # noqa: SLF001 (Keras has no other place for it, and is pinned)
_make_predict_function = TensorFlowTrainer.make_predict_function
_call, _build_loss, _get_metrics_result = Layer.__call__, CompileLoss.build, Trainer.get_metrics_result


def replacements() -> Iterator[Any]:
    """Replacements for methods of Keras' trainer and layers."""
    yield mock.patch.object(TensorFlowTrainer, "_make_function", _function_of_iterator)
    yield mock.patch.object(TensorFlowTrainer, "make_predict_function", _function_of_batches)
    yield mock.patch.object(Layer, "__call__", _called)
    yield mock.patch.object(CompileLoss, "build", _with_means_of_batches)
    yield mock.patch.object(Trainer, "get_metrics_result", _metrics_result)


class _Again:
    """See read_again."""

    left = 0
    outputs: Any = None

    @staticmethod
    def then() -> None:
        pass


def read_again(batches: int, outputs: Any, then: Callable[[], None]) -> None:
    """The first batches of the next fit() were trained before it was interrupted: they are read, and not trained. Each
    has these outputs; `then` is called after the last."""
    _Again.left, _Again.outputs = batches, outputs
    _Again.then = staticmethod(then)  # type: ignore[method-assign]


def _on_mesh(model: Any, step: Callable[..., Any]) -> Callable[..., Any]:
    """A step on a batch of the host; its results are ordinary tensors."""
    if model.run_eagerly:
        raise ConfigError(
            "run_eagerly is on, and only a compiled step is divided over a mesh",
            "leave it out; to look into a model, run it without set_distribution()",
        )
    mesh, function = current_mesh(), compiled(step)  # not by XLA, which jit_compile="auto" is on a GPU

    def run(data: Any, *, may_stop: bool = True) -> Any:
        with in_words(), default_mesh(mesh):
            placed = tree.map_structure(_distributed, data)
            agree(may_stop=may_stop)
            return tree.map_structure(on_host, function(placed))

    return run


def _distributed(value: Any) -> Any:
    if value is None or isinstance(value, tf.experimental.Optional):
        return None
    found = distribution()
    assert found is not None
    shape = getattr(value, "shape", None) or np.shape(value) or (1,)
    return distribute_data_input(value, found.get_data_layout(shape), found.batch_dim_name)


def _function_of_iterator(model: Any, step_function: Callable[..., Any]) -> Callable[..., Any]:
    """TensorFlowTrainer._make_function. Only an existing batch is a step, so the end of the data is not."""
    if distribution() is None:
        return _make_function(model, step_function)
    is_training = step_function == model.train_step

    def step(data: Any) -> Any:
        with vars(function)["as_traced"](data):
            return step_function(data)

    run = _on_mesh(model, step)

    def function(iterator: Any) -> Any:
        outputs = None
        for _ in range(model.steps_per_execution):
            try:
                data = next(iterator)
            except (StopIteration, tf.errors.OutOfRangeError):
                agree(ends=True)
                if outputs is None:
                    raise StopIteration from None
                break
            if not is_training or not _Again.left:
                outputs = run(data, may_stop=outputs is None)
                continue
            outputs, _Again.left = _Again.outputs, _Again.left - 1
            if not _Again.left:
                _Again.then()
        return outputs

    function.as_traced = nullcontext  # type: ignore[attr-defined]  # script/traced.py sets another
    return function


def _function_of_batches(model: Any, force: bool = False) -> Any:
    """TensorFlowTrainer.make_predict_function."""
    if distribution() is None:
        return _make_predict_function(model, force)
    if model.predict_function is None or force:
        run = _on_mesh(model, model.predict_step)

        def predict(batches: Any) -> Any:
            outputs = [run(batch) for batch in batches]
            return tree.map_structure(lambda *parts: tf.concat(parts, 0), *outputs)

        model.predict_function = predict
    return model.predict_function


@functools.wraps(_call)
def _called(layer: Any, *args: Any, **kwargs: Any) -> Any:
    """Layer.__call__: outside a step, values of the host are placed on the mesh first, and results can be read."""
    mesh = current_mesh()
    with_values = any(tf.is_tensor(value) or isinstance(value, np.ndarray) for value in tree.flatten((args, kwargs)))
    if mesh is None or not with_values or not tf.executing_eagerly() or dtensor.get_default_mesh() is not None:
        return _call(layer, *args, **kwargs)

    def placed(value: Any) -> Any:
        is_value = tf.is_tensor(value) or isinstance(value, np.ndarray)
        return replicate(np.asarray(value), mesh) if is_value and not is_distributed(value) else value

    args, kwargs = tree.map_structure(placed, (args, kwargs))
    with in_words(), default_mesh(mesh):
        return tree.map_structure(whole, _call(layer, *args, **kwargs))


class _MeanOfBatches(keras.metrics.Mean):
    """The loss of one of several outputs. Keras weights it by the rows of a batch where their number is in the shape,
    as it is in a step of a mesh only."""

    def update_state(self, values: Any, sample_weight: Any = None) -> Any:  # noqa: ARG002
        """As in Keras."""
        return super().update_state(values)


def _with_means_of_batches(loss: Any, *args: Any, **kwargs: Any) -> None:
    with mock.patch.object(metrics, "Mean", _MeanOfBatches):
        _build_loss(loss, *args, **kwargs)


@functools.wraps(_get_metrics_result)
def _metrics_result(model: Any) -> Any:
    """Trainer.get_metrics_result: after an epoch metrics compute on the host, as some do with values of it."""
    if not tf.executing_eagerly():
        return _get_metrics_result(model)
    values = [(variable, on_host(variable.value)) for variable in model.metrics_variables]
    with keras.StatelessScope(state_mapping=values):
        return _get_metrics_result(model)
