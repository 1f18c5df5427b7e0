"""Operations that DTensor computes wrongly, or not at all, on a sharded axis: the axis is gathered first."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial, wraps
from types import FunctionType
from typing import Any
from unittest import mock

import numpy as np
import tensorflow as tf
from keras.src.backend.common.symbolic_scope import in_symbolic_scope
from tensorflow.core.function.capture.capture_container import FunctionCaptures
from tensorflow.dtensor.python import gen_dtensor_ops
from tensorflow.experimental import dtensor
from tensorflow.python.framework.ops import EagerTensor, gradient_registry
from tensorflow.python.ops import (
    gen_array_ops,
    gen_math_ops,
    gen_nn_ops,
    gen_random_ops,
    gen_stateless_random_ops_v2,
)

from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.distribution.mesh import current_mesh
from tfgpujob_trainer.distribution.tensors import is_distributed

Axes = Callable[[int, dict[str, Any]], Sequence[int]]
"""The axes of an input of this rank that must not be sharded, given all arguments of the operation."""

_capture_by_value = FunctionCaptures.capture_by_value


def _all(rank: int, _: dict[str, Any]) -> Sequence[int]:
    return range(rank)


def _all_but_rows(rank: int, _: dict[str, Any]) -> Sequence[int]:
    return range(1, rank)


def _last(rank: int, _: dict[str, Any]) -> Sequence[int]:
    return [rank - 1]


def _named_by(argument: str, chosen: Callable[[np.ndarray], np.ndarray]) -> Axes:
    """The axes in an argument; all except the rows' if that is not known before the step."""

    def axes(rank: int, given: dict[str, Any]) -> Sequence[int]:
        value = tf.get_static_value(tf.convert_to_tensor(given[argument]))
        if value is None:
            return _all_but_rows(rank, given)
        return [int(axis) % rank for axis in np.ravel(chosen(np.asarray(value)))]

    return axes


_PADDED = _named_by("paddings", lambda paddings: np.flatnonzero(paddings.any(axis=1)))
_RESULT = ""
"""The name of the operation's result."""
_GATHERED: dict[Any, dict[str, dict[str, Axes]]] = {
    gen_nn_ops: {
        # Otherwise zero for every row, and a wrong gradient.
        "sparse_softmax_cross_entropy_with_logits": {"features": _last},
        # "Filter for convolution must have fully replicated layout", also for those of the gradient.
        "conv2d": {"input": _all_but_rows, "filter": _all, _RESULT: _all_but_rows},
        "conv2d_backprop_input": {"filter": _all, "out_backprop": _all_but_rows, _RESULT: _all_but_rows},
        "conv2d_backprop_filter": {"input": _all_but_rows, "out_backprop": _all_but_rows, _RESULT: _all},
        "conv3d": {"input": _all_but_rows, "filter": _all, _RESULT: _all_but_rows},
        "conv3d_backprop_input_v2": {"filter": _all, "out_backprop": _all_but_rows, _RESULT: _all_but_rows},
        "conv3d_backprop_filter_v2": {"input": _all_but_rows, "out_backprop": _all_but_rows, _RESULT: _all},
    },
    gen_array_ops: {
        # Errors about layouts, in the middle of a model.
        "pad": {"input": _PADDED},
        "pad_v2": {"input": _PADDED},
        "mirror_pad": {"input": _PADDED},
        "tile": {"input": _named_by("multiples", lambda multiples: np.flatnonzero(multiples != 1))},
        "concat_v2": {"values": _named_by("axis", lambda axis: axis)},
        "split": {"value": _named_by("axis", lambda axis: axis)},
        "split_v": {"value": _named_by("axis", lambda axis: axis)},
    },
}
_RANDOM = (
    "stateless_random_normal_v2",
    "stateless_random_uniform_full_int_v2",
    "stateless_random_uniform_int_v2",
    "stateless_random_uniform_v2",
    "stateless_shuffle",
    "stateless_truncated_normal_v2",
)
"""In gen_stateless_random_ops_v2. Each device would draw its own numbers: not those of one device, and others on each
mesh."""
_STATEFUL = (
    "multinomial",
    "random_gamma",
    "random_poisson_v2",
    "random_shuffle",
    "random_standard_normal",
    "random_uniform",
    "random_uniform_int",
    "truncated_normal",
)
"""In gen_random_ops: no layout makes them equal, because each device has a state of its own."""


def replacements() -> Iterator[Any]:
    """Replacements for TensorFlow's functions of operations."""
    instead = {
        gen_nn_ops.bias_add_grad: _as_summed,
        gen_array_ops.reverse_v2: _reversed,
        gen_array_ops.scatter_nd: _scattered,
        gen_array_ops.matrix_diag_v3: _evaluated,
        gen_array_ops.matrix_diag_part_v3: _diagonal,
        gen_math_ops.arg_min: _smallest,
    }
    for module, operations in _GATHERED.items():
        instead |= {getattr(module, name): partial(_gathering, inputs=inputs) for name, inputs in operations.items()}
    instead |= {getattr(gen_stateless_random_ops_v2, name): _same_everywhere for name in _RANDOM}
    instead |= {getattr(gen_random_ops, name): _refused for name in _STATEFUL}
    # Some are exported unchanged, so tf has them too.
    for module in [module for name, module in list(sys.modules.items()) if name.startswith("tensorflow")]:
        for name, value in list(vars(module).items()):
            if isinstance(value, FunctionType) and value in instead:
                yield mock.patch.object(module, name, instead[value](value))
    yield mock.patch.object(FunctionCaptures, "capture_by_value", _captured)
    registered = gradient_registry._registry  # noqa: SLF001 (TensorFlow is pinned)
    yield mock.patch.dict(registered["Relayout"], type=_gradient_of_relayout)


def _is_on_mesh(value: Any) -> bool:
    if tf.executing_eagerly():
        return is_distributed(value)
    return dtensor.get_default_mesh() is not None and tf.is_tensor(value)


def _gathering(original: Callable[..., Any], inputs: dict[str, Axes]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    @wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs).arguments

        def whole(name: str, value: Any) -> Any:
            if name in inputs and isinstance(value, list | tuple):
                # Those of one axis are shapes, which must be known before the step.
                return [whole(name, one) if tf.is_tensor(one) and (one.shape.rank or 0) > 1 else one for one in value]
            if name in inputs and _is_on_mesh(value) and value.shape.rank:
                return _whole(value, inputs[name](value.shape.rank, given))
            return value

        given |= {name: whole(name, value) for name, value in given.items()}
        return whole(_RESULT, original(**given))

    return call


def _whole(value: Any, axes: Sequence[int]) -> Any:
    """The value with these axes unsharded; the first of the other sharded axes is kept."""
    if not len(axes):
        return value
    specs, mesh = [dtensor.MATCH] * value.shape.rank, dtensor.get_default_mesh()
    if tf.executing_eagerly():
        layout = dtensor.fetch_layout(value)
        specs, mesh = layout.sharding_specs, layout.mesh
    kept = next((axis for axis in range(len(specs)) if axis not in axes), None)  # DTensor takes MATCH once
    specs = [spec if axis == kept else dtensor.UNSHARDED for axis, spec in enumerate(specs)]
    return dtensor.relayout(value, dtensor.Layout(specs, mesh))


def _gradient_of_relayout(operation: Any, gradient: Any) -> Any:
    """The gradient in the layout of the result. DTensor's own gives it that of the input, which is an error where a
    reshape before it has gathered the input. Without a layout the operation after it would be sharded nevertheless."""
    return gen_dtensor_ops.relayout(gradient, layout=operation.get_attr("layout"))


def _same_everywhere(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        drawn = original(*args, **kwargs)
        return _whole(drawn, range(drawn.shape.rank)) if _is_on_mesh(drawn) else drawn

    return call


def _refused(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if dtensor.get_default_mesh() is not None:
            raise ConfigError(
                f"the step draws random numbers by TensorFlow's {original.__name__}, which each device does for itself",
                "use keras.random with a SeedGenerator, or tf.random.stateless_uniform() and its like",
            )
        return original(*args, **kwargs)

    return call


def _as_summed(original: Callable[..., Any]) -> Callable[..., Any]:
    """BiasAddGrad, a sum that DTensor can't gather. What follows may need it whole, as a norm of all gradients does:
    that is then an operation of its own."""

    @wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        summed = original(*args, **kwargs)
        if tf.executing_eagerly() or not _is_on_mesh(summed):
            return summed
        return dtensor.relayout(summed, dtensor.Layout([dtensor.MATCH], dtensor.get_default_mesh()))

    return call


def _reversed(original: Callable[..., Any]) -> Callable[..., Any]:
    """ReverseV2, which DTensor lacks, by an operation that it has."""

    @wraps(original)
    def call(tensor: Any, axis: Any, name: Any = None) -> Any:
        axes = tf.get_static_value(axis)
        if axes is None or not _is_on_mesh(tensor):
            return original(tensor, axis, name)
        for one in np.ravel(axes):
            last = tf.shape(tensor)[int(one)] - 1
            tensor = tf.gather(tensor, last - tf.range(last + 1), axis=int(one))
        return tensor

    return call


def _scattered(original: Callable[..., Any]) -> Callable[..., Any]:
    """ScatterNd, as in the gradient of top_k. Each device would write its rows to where they are in the whole batch,
    and DTensor makes the shape int32."""

    @wraps(original)
    def call(indices: Any, updates: Any, shape: Any, name: Any = None) -> Any:
        if not _is_on_mesh(indices) and not _is_on_mesh(updates):
            return original(indices, updates, shape, name)
        indices, updates = tf.cast(indices, "int32"), tf.convert_to_tensor(updates)
        indices, updates = (_whole(value, range(value.shape.rank)) for value in (indices, updates))
        found = original(indices, updates, tf.cast(shape, "int32"), name)
        return _whole(found, range(found.shape.rank))

    return call


def _evaluated(original: Callable[..., Any]) -> Callable[..., Any]:
    """MatrixDiag, which DTensor lacks, as a constant: tf.eye() has it."""

    @wraps(original)
    def call(**given: Any) -> Any:
        known = {name: tf.get_static_value(value) for name, value in given.items() if tf.is_tensor(value)}
        if dtensor.get_default_mesh() is None or any(value is None for value in known.values()):
            return original(**given)
        with tf.init_scope(), tf.device("CPU:0"):
            value = original(**given | known).numpy()
        return tf.constant(value)

    return call


def _diagonal(original: Callable[..., Any]) -> Callable[..., Any]:
    """MatrixDiagPart, which DTensor lacks, of square matrices: metrics of intersections over unions have it."""

    @wraps(original)
    def call(**given: Any) -> Any:
        matrix, offset = given["input"], tf.get_static_value(tf.convert_to_tensor(given["k"]))
        if not _is_on_mesh(matrix) or matrix.shape[-1] != matrix.shape[-2] or offset is None or np.any(offset):
            return original(**given)
        return tf.reduce_sum(tf.where(np.eye(matrix.shape[-1], dtype=bool), matrix, tf.zeros([], matrix.dtype)), -1)

    return call


def _smallest(original: Callable[..., Any]) -> Callable[..., Any]:
    """ArgMin, which DTensor lacks, by ArgMax."""

    @wraps(original)
    def call(input: Any, dimension: Any, output_type: Any = tf.int64, name: Any = None) -> Any:  # noqa: A002 (TensorFlow's)
        if not _is_on_mesh(input) or input.dtype.is_unsigned:
            return original(input, dimension, output_type, name)
        return tf.argmax(-input, dimension, output_type)

    return call


def _captured(captures: Any, graph: Any, tensor: Any, name: Any = None) -> Any:
    """A tensor captured by a step, such as the mean of a Normalization layer, becomes a constant instead of an input of
    one device.
    """
    # While Keras only computes shapes, nothing is evaluated.
    if not isinstance(tensor, EagerTensor) or current_mesh() is None or in_symbolic_scope():
        return _capture_by_value(captures, graph, tensor, name)
    in_step = dtensor.get_default_mesh() is not None
    with tf.init_scope():
        on_mesh = dtensor.is_dtensor(tensor)
    if on_mesh and not in_step:
        raise ConfigError(
            "a divided model is used in a tf.function of the script's own, or by export()",
            "train with fit(), where the model may have a train_step(); save() it, and export what load_model() reads "
            "without a distribution",
        )
    if on_mesh or not in_step:
        return _capture_by_value(captures, graph, tensor, name)
    if tensor.dtype in (tf.resource, tf.variant):
        # DTensor would run it on every device: four devices count a step four times.
        raise ConfigError(
            "the step uses a tf.Variable, a lookup table or a weight that is not on the mesh",
            "make models, and variables by add_weight(), after set_distribution(); look words up in tf.data",
        )
    return tensor._capture_as_const(name)  # noqa: SLF001 (TensorFlow does so with small ones, and is pinned)
