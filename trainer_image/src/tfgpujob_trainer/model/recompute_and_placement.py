"""Rematerialisation (`recompute`: forward again in the backward pass) and layer placement (`placement`: on one device).

The call of such a layer becomes a pure function of tensors: its inputs, its weights and its state. What it
writes (moving statistics, random seeds) comes out as results and is assigned once. So a second forward pass
draws the same Dropout masks and writes nothing; `keras.remat` and `tf.recompute_grad` draw new masks and update
BatchNormalization twice, which is silently another gradient.
"""

from __future__ import annotations

import contextlib
import fnmatch
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend import AutocastScope, get_keras_mask, in_stateless_scope, set_keras_mask
from keras.src.backend.common.name_scope import current_path

from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.contract.support import require
from tfgpujob_trainer.contract.text import did_you_mean

_SAME_AGAIN = {"StatelessRandomGetAlg"}
"""Operations that TensorFlow counts as stateful, and that give the same result when they are run again."""
_PLAIN = "use Keras layers, variables and seed generators in it, or leave it out"


@contextlib.contextmanager
def create_on_devices(placement: Mapping[str, int], devices: Sequence[str]) -> Iterator[None]:
    """Create the variables of placed layers on their devices at once, so that no device must hold them all."""
    anchors = {}
    for device in devices if placement else ():
        with tf.device(device):
            anchors[device] = tf.zeros([])

    def create(next_creator: Callable[..., Any], **kwargs: Any) -> Any:
        device = _device_of(current_path(), placement, devices)
        if device is None:
            return next_creator(**kwargs)
        # A strategy puts all variables on its own device but those; without one, as in mode predict, nothing heeds it.
        with tf.device(device):
            return next_creator(**kwargs, colocate_with=anchors[device])

    with tf.variable_creator_scope(create) if placement else contextlib.nullcontext():
        yield


def rewrite_layers(
    model: keras.Model, recompute: Sequence[str], placement: Mapping[str, int], devices: Sequence[str], strategy: str
) -> list[str]:
    """Change how the layers that the globs name are computed; returns a note for people for each kind.

    `recompute`: only their inputs are kept until the backward pass, which runs them again. Worth it for layers
    made of layers: the activations within are dropped. `placement`: forward and backward run on `devices[index]`,
    to which the inputs are copied. Neither changes the numbers.

    Raises ConfigError for a glob that matches nothing and for layers that cannot be run again; a layer that is not
    made of Keras' parts alone is only found when the step is traced.
    """
    again = _matching(model, recompute, "trainer.recompute")
    placed: dict[int, str] = {}
    for glob, index in placement.items():
        placed.update(dict.fromkeys(_matching(model, [glob], "trainer.placement"), devices[index]))
    layers = {id(layer): layer for layer in model._flatten_layers(include_self=False)}  # noqa: SLF001
    for key in dict.fromkeys([*again, *placed]):
        layer = layers[key]
        for part in layer._flatten_layers(include_self=False):  # noqa: SLF001
            if id(part) in placed or id(part) in again:
                raise ConfigError(
                    f"trainer.recompute and trainer.placement name {layer.name!r} and {part.name!r} within it",
                    f"name {layer.name!r} in both",
                )
        if key in again:
            for part in layer._flatten_layers():  # noqa: SLF001
                if isinstance(part, keras.layers.BatchNormalization) and part.synchronized:
                    require("recompute of synchronized BatchNormalization", strategy, part.name)
        _replace_call(layer, device=placed.get(key), again=key in again)
    return [
        *([f"recomputed in the backward pass: {', '.join(layers[k].name for k in again)}"] if again else []),
        *(f"{layers[k].name} is computed on {device}" for k, device in placed.items()),
    ]


def _device_of(path: str | None, placement: Mapping[str, int], devices: Sequence[str]) -> str | None:
    """Where a variable that is created under that path belongs: with the outermost layer that a glob names."""
    for part in (path or "").split("/"):
        for glob, index in placement.items():
            if fnmatch.fnmatchcase(part, glob):
                return devices[index]
    return None


def _matching(model: keras.Model, globs: Sequence[str], field: str) -> list[int]:
    """Ids of the outermost layers whose names match; raises ConfigError if a glob matches none."""
    found: list[int] = []

    def look(layers: Sequence[Any], glob: str) -> bool:
        any_found = False
        for layer in layers:
            if fnmatch.fnmatchcase(layer.name, glob):
                any_found = True
                found.append(id(layer))
            else:
                any_found |= look(layer._layers, glob)  # noqa: SLF001 (Keras shows only the layers of a Model)
        return any_found

    for glob in globs:
        if not look(model._layers, glob):  # noqa: SLF001
            known = [layer.name for layer in model._flatten_layers(include_self=False)]  # noqa: SLF001
            raise ConfigError(f"{field}: no layer is named {glob!r}", did_you_mean(glob, known))
    return list(dict.fromkeys(found))


def _replace_call(layer: Any, *, device: str | None, again: bool) -> None:
    original = layer.call

    def call(*args: Any, **kwargs: Any) -> Any:
        symbolic = any(isinstance(value, keras.KerasTensor) for value in tf.nest.flatten((args, kwargs)))
        forward_only = device is None and not layer._get_call_context().training  # noqa: SLF001
        if symbolic or forward_only or tf.executing_eagerly() or in_stateless_scope():
            return original(*args, **kwargs)
        return _Call(layer, original, (args, kwargs), device=device, again=again).run()

    layer.call = call


@dataclass(frozen=True, slots=True)
class _Form:
    """How the flat results of a call are read: outputs, their masks (None where there is none), the new state."""

    outputs: Any
    masks: list[bool]


class _Call:
    """One call of a layer as a pure function of its arguments, weights and state."""

    def __init__(
        self, layer: Any, original: Callable[..., Any], given: Any, *, device: str | None, again: bool
    ) -> None:
        self._layer, self._original, self._given = layer, original, given
        self._device, self._again = device, again
        self._training = layer._get_call_context().training  # noqa: SLF001
        self._arguments = tf.nest.flatten(given)
        self._places = [i for i, value in enumerate(self._arguments) if tf.is_tensor(value)]
        self._weights, self._state = list(layer.trainable_variables), list(layer.non_trainable_variables)
        self._form: _Form | None = None

    def run(self) -> Any:
        """The layer's outputs; assigns its new state once."""
        with AutocastScope(None):  # the layers inside cast by themselves
            variables = [tf.convert_to_tensor(v.value) for v in (*self._weights, *self._state)]
        results = list(tf.custom_gradient(self._function)(*(self._arguments[i] for i in self._places), *variables))
        assert self._form is not None
        split = len(results) - len(self._state)
        for variable, value in zip(self._state, results[split:], strict=True):
            variable.assign(value)
        count = len(self._form.masks)
        masks = iter(results[count:split])
        for output, masked in zip(results[:count], self._form.masks, strict=True):
            if masked:
                set_keras_mask(output, next(masks))
        return tf.nest.pack_sequence_as(self._form.outputs, results[:count])

    def _function(self, *inputs: Any) -> Any:
        before = len(tf.compat.v1.get_default_graph().get_operations())
        with self._where(), tf.GradientTape(persistent=True) as tape:
            if not self._again:
                tape.watch(_floating(inputs))
            outputs, scope = self._outputs(inputs, self._original)
        self._check(tf.compat.v1.get_default_graph().get_operations()[before:], scope.losses)
        flat = tf.nest.flatten(outputs)
        masks = [get_keras_mask(output) for output in flat]
        self._form = _Form(outputs, [mask is not None for mask in masks])

        def gradient(*upstream: Any) -> list[Any]:
            upstream = upstream[: len(flat)]
            with self._where():
                if not self._again:
                    return _gradients(tape, flat, inputs, upstream)
                later = _after(inputs, upstream)
                with tf.GradientTape(persistent=True) as second:
                    second.watch(_floating(later))
                    found, _ = self._outputs(later, self._called)
                return _gradients(second, tf.nest.flatten(found), later, upstream)

        state = [tf.convert_to_tensor(scope.get_current_value(v)) for v in self._state]
        return [*flat, *(mask for mask in masks if mask is not None), *state], gradient

    def _outputs(self, inputs: Sequence[Any], function: Callable[..., Any]) -> tuple[Any, keras.StatelessScope]:
        """The outputs of `function` on these arguments, weights and state, and what it would have written."""
        values = dict(zip(self._places, inputs, strict=False))
        given = [values.get(i, argument) for i, argument in enumerate(self._arguments)]
        args, kwargs = tf.nest.pack_sequence_as(self._given, given)
        mapping = list(zip([*self._weights, *self._state], inputs[len(self._places) :], strict=True))
        with keras.StatelessScope(state_mapping=mapping, collect_losses=True) as scope:
            return function(*args, **kwargs), scope

    def _called(self, *args: Any, **kwargs: Any) -> Any:
        """The whole call, which sets up the layers within as the first one found them."""
        return self._layer(*args, **{**kwargs, "training": self._training})

    def _check(self, operations: Sequence[Any], losses: Sequence[Any]) -> None:
        """Raise ConfigError if the layer does more than to compute its outputs and its state."""
        if losses:
            raise ConfigError(f"layer {self._layer.name!r} adds losses, which are not moved with it", _PLAIN)
        for operation in operations:
            kind = operation.type
            if operation.op_def.is_stateful and kind not in _SAME_AGAIN:
                raise ConfigError(f"layer {self._layer.name!r} cannot be computed elsewhere: it does {kind}", _PLAIN)

    def _where(self) -> Any:
        return contextlib.nullcontext() if self._device is None else tf.device(self._device)


def _gradients(tape: tf.GradientTape, results: Sequence[Any], inputs: Sequence[Any], upstream: Sequence[Any]) -> Any:
    pairs = [(r, u) for r, u in zip(results, upstream, strict=True) if r.dtype.is_floating and u is not None]
    targets, gradients = zip(*pairs, strict=True)
    floating = [i for i, value in enumerate(inputs) if value.dtype.is_floating]
    found = tape.gradient(list(targets), [inputs[i] for i in floating], list(gradients))
    result: list[Any] = [None] * len(inputs)
    for i, value in zip(floating, found, strict=True):
        result[i] = value
    return result


def _floating(tensors: Sequence[Any]) -> list[Any]:
    return [tensor for tensor in tensors if tensor.dtype.is_floating]


def _after(inputs: Sequence[Any], upstream: Sequence[Any]) -> list[Any]:
    """The inputs, made to depend on the gradient, or the second pass would run beside the first."""
    head = tf.reduce_max(tf.reshape(next(u for u in upstream if u is not None), [-1])[:1])
    flag = tf.cast(head, tf.bool)
    zero = tf.where(tf.equal(flag, flag), 0.0, float("nan"))  # always 0; nothing in TensorFlow knows
    return [value if value.dtype == tf.bool else value + tf.cast(zero, value.dtype) for value in inputs]
