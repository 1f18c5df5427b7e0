"""A small model and its data for each technique that SUPPORT calls exact and float64 can judge."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

ROWS = 101
"""A number of rows that neither the batch size nor two replicas divide."""

CE = keras.losses.SparseCategoricalCrossentropy


def rng(seed=3):
    return np.random.default_rng(seed)


def rows(*shape, seed=3):
    return rng(seed).normal(size=(ROWS, *shape))


def labels(classes=3, *shape):
    return rng(4).integers(0, classes, size=(ROWS, *shape))


def dense(optimizer, loss=None, **compile_args):
    net = keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(8, "tanh", kernel_regularizer=keras.regularizers.L2(1e-2)),
            keras.layers.Dense(3),
        ]
    )
    net.compile(optimizer, loss or CE(from_logits=True), **compile_args)
    return net


def masked():
    inputs = keras.Input((5,), dtype="int64")
    hidden = keras.layers.Embedding(7, 4, mask_zero=True)(inputs)
    net = keras.Model(inputs, keras.layers.Dense(3)(hidden))
    net.compile(keras.optimizers.SGD(0.3, global_clipnorm=1.0), CE(from_logits=True))
    return net


def two_outputs():
    inputs = keras.Input((6,))
    hidden = keras.layers.Dense(8, "tanh", activity_regularizer=keras.regularizers.L2(1e-2))(inputs)
    net = keras.Model(
        inputs, {"a": keras.layers.Dense(3, name="a")(hidden), "b": keras.layers.Dense(2, name="b")(hidden)}
    )
    net.compile(
        keras.optimizers.SGD(0.3, global_clipnorm=0.5),
        {"a": CE(from_logits=True), "b": "mse"},
        loss_weights={"a": 0.7, "b": 0.3},
    )
    return net


class OwnLoss(keras.Model):
    """A model whose compute_loss is its own."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return keras.ops.mean(keras.ops.square(y_pred[:, 0] - keras.ops.cast(y, y_pred.dtype)))


def own_loss():
    inputs = keras.Input((6,))
    net = OwnLoss(inputs, keras.layers.Dense(1)(keras.layers.Dense(4, "tanh")(inputs)))
    net.compile(keras.optimizers.SGD(0.1))
    return net


def adamw(**kwargs):
    return keras.optimizers.AdamW(0.05, **kwargs)


def one_number(y_true, y_pred):
    return keras.ops.mean(keras.ops.square(y_pred[:, 0] - keras.ops.cast(y_true, y_pred.dtype)))


class Embeddings(keras.layers.Layer):
    """Tokens repeat within a row; places are the same for each row; the types' table is looked up in both ways."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.tokens, self.places, self.types = (keras.layers.Embedding(size, 4) for size in (9, 8, 6))

    def call(self, tokens):
        places = keras.ops.arange(keras.ops.shape(tokens)[1])
        types = self.types(keras.ops.zeros_like(tokens)) + self.types(places % 3)
        return self.tokens(tokens) + self.places(places) + types


def embedding(optimizer=None, length=5):
    inputs = keras.Input((length,), dtype="int64")
    hidden = keras.layers.GlobalAveragePooling1D()(keras.layers.Dense(4, "tanh")(Embeddings()(inputs)))
    net = keras.Model(inputs, keras.layers.Dense(3)(hidden))
    # Adam squares each slice of a gradient by itself, and clipnorm takes the length of them all.
    net.compile(optimizer or adamw(epsilon=1e-3, clipnorm=0.05), CE(from_logits=True))
    return net


def excluded(optimizer, names):
    optimizer.exclude_from_weight_decay(var_names=names)
    return optimizer


def regularised():
    inputs = keras.Input((6,))
    hidden = keras.layers.Dense(8, "tanh", kernel_regularizer="l2", activity_regularizer="l2")(inputs)
    net = keras.Model(inputs, keras.layers.Dense(3, bias_regularizer="l1")(hidden))
    net.compile(adamw(global_clipnorm=0.5), CE(from_logits=True))
    return net


def frozen():
    net = dense(adamw())
    net.layers[0].trainable = False
    net.compile(adamw(), CE(from_logits=True))
    return net


def synchronized():
    net = keras.Sequential([keras.Input((6,)), keras.layers.BatchNormalization(synchronized=True)])
    net.add(keras.layers.Dense(3))
    net.compile(adamw(global_clipnorm=0.1), CE(from_logits=True))
    return net


def warmed_up():
    rate = keras.optimizers.schedules.CosineDecay(0.0, 50, warmup_target=0.1, warmup_steps=20)
    return dense(keras.optimizers.Adam(rate))


def blocks(dropout=0.0, batch_norm=False, synchronized=False):
    """Three residual blocks, each a layer made of layers.

    Trained with SGD: Adam makes whole steps of gradients that are zero but for rounding.
    """
    x = inputs = keras.Input((6,))
    for number in range(3):
        parts = [keras.layers.Dense(8, "tanh", kernel_regularizer="l2"), keras.layers.LayerNormalization()]
        parts += [keras.layers.BatchNormalization(synchronized=synchronized)] if batch_norm else []
        parts += [keras.layers.Dropout(dropout)] if dropout else []
        block = keras.Sequential([*parts, keras.layers.Dense(6)], name=f"block_{number}")
        x = keras.layers.Add()([x, block(x)])
    net = keras.Model(inputs, keras.layers.Dense(3)(x))
    net.compile(keras.optimizers.SGD(0.1, momentum=0.9, global_clipnorm=0.5), CE(from_logits=True))
    return net


CASES = {
    "global_clipnorm": (lambda: dense(adamw(global_clipnorm=0.1)), lambda: (rows(6), labels())),
    "clipnorm": (lambda: dense(adamw(clipnorm=0.05)), lambda: (rows(6), labels())),
    "clipvalue": (lambda: dense(adamw(clipvalue=0.01)), lambda: (rows(6), labels())),
    "steps_per_execution": (lambda: dense(adamw(), steps_per_execution=4), lambda: (rows(6), labels())),
    "learning-rate schedule": (
        lambda: dense(keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(0.1, 20))),
        lambda: (rows(6), labels()),
    ),
    "weight decay with exclusion": (
        lambda: dense(excluded(adamw(weight_decay=0.1), ["bias"])),
        lambda: (rows(6), labels()),
    ),
    "sample weights": (lambda: dense(adamw()), lambda: (rows(6), labels(), rng(5).uniform(size=ROWS))),
    "mean_with_sample_weight": (
        lambda: dense(adamw(), CE(from_logits=True, reduction="mean_with_sample_weight")),
        lambda: (rows(6), labels(), rng(5).uniform(size=ROWS)),
    ),
    "a summed loss": (
        lambda: dense(keras.optimizers.SGD(0.01), CE(from_logits=True, reduction="sum")),
        lambda: (rows(6), labels()),
    ),
    "a loss of one number": (lambda: dense(adamw(), one_number), lambda: (rows(6), labels())),
    "masks": (masked, lambda: (rng(6).integers(0, 7, size=(ROWS, 5)), labels(3, 5))),
    "several outputs": (two_outputs, lambda: (rows(6), {"a": labels(), "b": rows(2, seed=9)})),
    "sparse gradients of embeddings": (embedding, lambda: (rng(6).integers(0, 7, size=(ROWS, 5)), labels())),
    "moving averages of the weights (EMA)": (
        lambda: dense(adamw(use_ema=True, ema_overwrite_frequency=3)),
        lambda: (rows(6), labels()),
    ),
    "learning-rate warm-up": (warmed_up, lambda: (rows(6), labels())),
    "weight and activity regularisers": (regularised, lambda: (rows(6), labels())),
    "frozen layers": (frozen, lambda: (rows(6), labels())),
    "synchronized BatchNormalization": (synchronized, lambda: (rows(6), labels())),
    "class weights": (lambda: dense(adamw()), lambda: (rows(6), labels())),
    "recompute": (blocks, lambda: (rows(6), labels())),
    "jit: replica": (blocks, lambda: (rows(6), labels())),
    "own compute_loss": (own_loss, lambda: (rows(6), labels())),
}

SETTINGS: dict[str, dict[str, Any]] = {
    "class weights": {"classWeights": {"0": 0.5, "2": 3}},
    "recompute": {"recompute": ["block_*"]},
    "jit: replica": {"jit": "replica"},
}
"""What spec.trainer says in these cases."""

PLAIN: dict[str, dict[str, Any]] = {"class weights": {"class_weight": {0: 0.5, 1: 1.0, 2: 3.0}}}
"""Arguments of plain Keras' train_on_batch in these cases."""

ACCUMULATED = [
    "class weights",
    "recompute",
    "jit: replica",
    "global_clipnorm",
    "sample weights",
    "mean_with_sample_weight",
    "a summed loss",
    "masks",
    "several outputs",
    "sparse gradients of embeddings",
]
"""Cases that are also run in micro-batches, for `gradient accumulation`."""

MICRO_BATCHES = 3
"""Into how many a batch is cut in the cases that accumulate."""

PER_MICRO_BATCH = {"synchronized BatchNormalization with accumulation": "synchronized BatchNormalization"}
"""Techniques that equal one device with the same micro-batches, and the case that is run for each."""

JUDGED_OTHERWISE = {
    "gradient accumulation",
    "mixed_bfloat16",
    "mixed_float16",
    "deterministic",
    "a profile",
    "data without an end",
    "state of your own layers",
}
"""Exact techniques without a case of their own: see the tests that name them."""
