"""Embedding layers that fetch the rows they need from a parameter server.

Keras reads the whole table and then gathers rows from it: under ParameterServer every step would send every table over
the network.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf


def look_up_on_servers(model: keras.Model) -> None:
    """Make the model's Embedding layers gather rows where the table is. Layers with their own `call` are not
    changed.
    """
    for layer in model._flatten_layers():  # noqa: SLF001
        plain = type(layer).call is keras.layers.Embedding.call
        if plain and layer.quantization_mode is None and not layer.lora_enabled:
            layer.call = _Lookup(layer)


class _Lookup:
    """Replaces the `call` of one Embedding layer."""

    def __init__(self, layer: keras.layers.Embedding) -> None:
        self._layer = layer

    def __call__(self, inputs: Any) -> Any:
        indices = inputs if inputs.dtype in (tf.int32, tf.int64) else tf.cast(inputs, tf.int32)
        rows = tf.gather(self._layer.embeddings.value, indices)
        return tf.cast(rows, self._layer.compute_dtype)
