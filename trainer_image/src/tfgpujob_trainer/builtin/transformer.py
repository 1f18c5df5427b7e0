"""A small transformer on made-up texts: a text's class is the token that it holds most often. Needs no download."""

import keras
import numpy as np


def model(*, vocabulary=1000, length=64, width=64, heads=4, blocks=2, classes=8, lr=1e-3):
    tokens = keras.Input((length,), dtype="int32")
    positions = keras.ops.arange(length)
    x = keras.layers.Embedding(vocabulary, width, name="tokens")(tokens)
    x = x + keras.layers.Embedding(length, width, name="positions")(positions)
    for i in range(blocks):
        h = keras.layers.LayerNormalization(name=f"block{i}_norm1")(x)
        x = x + keras.layers.MultiHeadAttention(heads, width // heads, name=f"block{i}_attention")(h, h)
        h = keras.layers.LayerNormalization(name=f"block{i}_norm2")(x)
        h = keras.layers.Dense(4 * width, "gelu", name=f"block{i}_up")(h)
        x = x + keras.layers.Dense(width, name=f"block{i}_down")(h)
    x = keras.layers.GlobalAveragePooling1D()(keras.layers.LayerNormalization(name="norm")(x))
    net = keras.Model(tokens, keras.layers.Dense(classes, name="head")(x))
    net.compile(
        keras.optimizers.AdamW(lr, global_clipnorm=1.0),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return net


def data(split, *, rows=4096, vocabulary=1000, length=64, classes=8):
    rng = np.random.default_rng(1 if split == "train" else 2)
    rows = rows if split == "train" else max(1, rows // 8)
    y = rng.integers(0, classes, rows)
    x = rng.integers(classes, vocabulary, (rows, length), dtype="int32")
    return np.where(rng.random((rows, length)) < 0.3, y[:, None].astype("int32"), x), y
