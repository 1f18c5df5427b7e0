"""Small models on a mesh of 2 × 2 devices and on one device: prints, for each, how far they are apart, or the refusal.

Run as a program, with names of cases as arguments. Each trains by SGD for four batches, of which the last is odd.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.distribution.install import installed
from tfgpujob_trainer.distribution.report import describe

ROWS, BATCH, CLASSES = 28, 8, 4

if __name__ == "__main__":  # before a layer makes the first tensor
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 4)
    keras.config.set_floatx("float64")


@dataclass(frozen=True)
class Case:
    """A model, the layouts of its variables, and what it is given. `refused`: a part of what is said instead."""

    model: Callable[[], keras.Model]
    layouts: Mapping[str, tuple[str | None, ...]] = field(default_factory=dict)
    loss: str = "mse"
    x: Callable[[np.random.Generator], np.ndarray] = lambda random: random.normal(size=(ROWS, 8))
    y: Callable[[np.random.Generator], np.ndarray] | None = None
    compiled: Mapping[str, Any] = field(default_factory=dict)
    fit: Mapping[str, Any] = field(default_factory=dict)
    refused: str = ""
    data_parallel: bool = False
    """DataParallel over four devices, in place of ModelParallel over 2 × 2."""


@keras.saving.register_keras_serializable()
class Op(layers.Layer):
    """A function as a layer."""

    def __init__(self, function, **kwargs):
        super().__init__(**kwargs)
        self.function = function

    def call(self, inputs):
        return self.function(inputs)


class Noise(layers.Layer):
    """Numbers of tf.random, which no SeedGenerator draws."""

    def call(self, inputs):
        return inputs * tf.random.stateless_uniform(tf.shape(inputs), seed=[1, 2], dtype=inputs.dtype)


class Counter(keras.Model):
    """A train_step of its own, with a tf.Variable of its own."""

    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(4)
        self.steps = tf.Variable(0, trainable=False)

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        self.steps.assign_add(1)
        return super().train_step(data)


class Subclassed(keras.Model):
    """Layers that are built when they are first called, with Dropout."""

    def __init__(self):
        super().__init__()
        self.first, self.drop = layers.Dense(8, name="first"), layers.Dropout(0.2)
        self.last = layers.Dense(4)

    def call(self, x, training=False):
        return self.last(self.drop(ops.relu(self.first(x)), training=training))


class Taped(Subclassed):
    """A step of its own, with a tape of its own."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=y, y_pred=self(x, training=True)) + 0.1 * ops.mean(self.first.kernel**2)
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}

    def test_step(self, data):
        x, y = data
        return {"loss": self.compute_loss(y=y, y_pred=self(x))}


@tf.custom_gradient
def clipped(x):
    return x * 2, lambda upstream: tf.clip_by_value(upstream, -0.01, 0.01)


def printed(x):
    tf.print(tf.reduce_sum(x))
    return x


class RunningMean(layers.Layer):
    """State of its own, which is read after it was assigned."""

    def build(self, shape):
        self.mean = self.add_weight(shape=(shape[-1],), initializer="zeros", trainable=False, name="mean")
        self.count = self.add_weight(shape=(), initializer="zeros", trainable=False, name="count")

    def call(self, x, training=False):
        if training:
            self.count.assign_add(1)
            self.mean.assign(0.9 * self.mean + 0.1 * ops.mean(x, axis=0))
            self.add_loss(0.1 * ops.sum(self.mean**2))
        return x - self.mean * self.count


class Block(layers.Layer):
    """Weights of its own, layers of its own, and no word about its shape."""

    def build(self, shape):
        self.inner = layers.Dense(8, name="wide")
        self.scale = self.add_weight(shape=(shape[-1],), initializer="ones", name="scale")
        super().build(shape)

    def call(self, x):
        return self.inner(x * self.scale) + x


def grouped_attention() -> keras.Model:
    inputs = keras.Input((6, 8))
    y = layers.GroupQueryAttention(2, 4, 2, name="attention", flash_attention=False)(inputs, inputs)
    return keras.Model(inputs, layers.Dense(4)(layers.Flatten()(inputs + y)))


WIDE = {"wide.*kernel": (None, "model"), "wide.*bias": ("model",)}


def after_wide(*following: layers.Layer, x: tuple[int, ...] = (8,)) -> Callable[[], keras.Model]:
    """These layers on an output that is divided over its last axis."""
    return lambda: keras.Sequential([keras.Input(x), layers.Dense(8, name="wide"), *(copied(f) for f in following)])


def copied(layer: layers.Layer) -> layers.Layer:
    """A layer of its own for each of the two models."""
    return Op(layer.function) if isinstance(layer, Op) else type(layer).from_config(layer.get_config())


def several_outputs() -> keras.Model:
    inputs = keras.Input((8,))
    wide = layers.Dense(8, "relu", name="wide")(inputs)
    return keras.Model(inputs, [layers.Dense(1)(wide), layers.Dense(1, "sigmoid")(wide)])


def op(function: Callable[[Any], Any]) -> Case:
    """A function of a tensor whose last axis is divided, and then a layer with weights."""
    return Case(after_wide(Op(function), layers.Flatten(), layers.Dense(4)), WIDE)


def optimized(optimizer: Callable[[], keras.optimizers.Optimizer]) -> Case:
    """An optimizer, with slots that are divided as their weights."""
    return Case(after_wide(layers.Dense(4)), WIDE, compiled={"optimizer": optimizer})


def alone(*following: layers.Layer, x: tuple[int, ...] = (8,), **more: Any) -> Case:
    """These layers, with whole variables unless there are layouts."""
    return Case(
        lambda: keras.Sequential([keras.Input(x), *(copied(one) for one in following)]),
        x=lambda random: random.normal(size=(ROWS, *x)),
        **more,
    )


def refused(case: Case, words: str) -> Case:
    return replace(case, refused=words)


def classes(random: np.random.Generator) -> np.ndarray:
    return random.integers(0, CLASSES, ROWS)


def tokens(random: np.random.Generator) -> np.ndarray:
    return random.integers(0, 16, (ROWS, 6))


def transformer() -> keras.Model:
    ids = keras.Input((6,), dtype="int32")
    x = layers.Embedding(16, 8, name="tokens")(ids)
    y = layers.LayerNormalization()(x)
    y = layers.MultiHeadAttention(2, 4, name="attention", flash_attention=False)(y, y, use_causal_mask=True)
    x = x + layers.Dropout(0.2)(y)
    y = layers.LayerNormalization()(x)
    y = layers.Dense(16, "gelu", name="up")(y)
    x = x + layers.Dense(8, name="down")(y)
    return keras.Model(ids, layers.Dense(16, name="head")(x))


MEGATRON = {
    "tokens.*embeddings": ("model", None),
    "attention/(query|key|value)/kernel": (None, "model", None),
    "attention/(query|key|value)/bias": ("model", None),
    "attention/attention_output/kernel": ("model", None, None),
    "up/kernel": (None, "model"),
    "up/bias": ("model",),
    "down/kernel": ("model", None),
    "head/kernel": (None, "model"),
    "head/bias": ("model",),
}


def guide() -> keras.Model:
    """The layers of Keras' guide to distributed training, with Dropout that drops."""
    return keras.Sequential(
        [
            keras.Input((8,)),
            layers.Dense(16, "relu", name="wide"),
            layers.Dropout(0.2),
            layers.BatchNormalization(),
            layers.Dense(8, name="d2"),
            layers.LayerNormalization(),
            layers.Dense(4, name="d3"),
        ]
    )


OF_GUIDE: dict[str, Any] = {
    "y": classes,
    "compiled": {
        "optimizer": lambda: keras.optimizers.Adam(0.01),
        "loss": lambda y, p: ops.sparse_categorical_crossentropy(y, p, True),
        "metrics": ["accuracy"],
    },
    "fit": {"validation_split": 0.25},
}
SPARSE = "sparse_categorical_crossentropy"
IMAGES = (8, 8, 4)
OF_CHANNELS = {"conv.*kernel": (None, None, None, "model"), "conv.*bias": ("model",)}

CASES: dict[str, Case] = {
    "the guide, ModelParallel": Case(
        guide, {**WIDE, "d2.*kernel": ("model", None), "d3.*kernel": (None, "model")}, **OF_GUIDE
    ),
    "the guide, DataParallel": Case(guide, data_parallel=True, **OF_GUIDE),
    # Losses.
    "sparse cross-entropy of divided classes": Case(after_wide(layers.Softmax()), WIDE, SPARSE, y=classes),
    "sparse cross-entropy of divided logits": Case(
        after_wide(), WIDE, y=classes, compiled={"loss": lambda y, p: ops.sparse_categorical_crossentropy(y, p, True)}
    ),
    "cross-entropy of TensorFlow's own": Case(
        after_wide(),
        WIDE,
        y=classes,
        compiled={
            "loss": lambda y, p: tf.nn.sparse_softmax_cross_entropy_with_logits(
                tf.cast(tf.reshape(y, [-1]), "int32"), p
            )
        },
    ),
    "one-hot cross-entropy": Case(
        after_wide(layers.Softmax()), WIDE, "categorical_crossentropy", y=lambda r: np.eye(8)[r.integers(0, 8, ROWS)]
    ),
    "transformer": Case(
        transformer,
        MEGATRON,
        x=tokens,
        y=tokens,
        compiled={
            "optimizer": lambda: keras.optimizers.SGD(0.01, momentum=0.9, global_clipnorm=0.5),
            "loss": lambda y, p: ops.sparse_categorical_crossentropy(y, p, True),
        },
    ),
    # Random numbers.
    "dropout of a divided tensor": Case(after_wide(layers.Dropout(0.3), layers.Dense(4)), WIDE),
    "dropout of rows": alone(layers.Dropout(0.3), layers.Dense(4)),
    "noise": alone(layers.GaussianNoise(0.3), layers.GaussianDropout(0.2), layers.Dense(4)),
    "random numbers of TensorFlow": Case(after_wide(Noise(), layers.Dense(4)), WIDE),
    "drawn classes": refused(
        op(lambda x: x + ops.cast(keras.random.categorical(x, 8, dtype="int32", seed=3), x.dtype)), "Multinomial"
    ),
    "drawn by gamma": refused(op(lambda x: x + keras.random.gamma((1, 8), 2.0, seed=3)), "Gamma"),
    "drawn by binomial": refused(op(lambda x: x + keras.random.binomial((1, 8), 3.0, 0.5, seed=4)), "Binomial"),
    "shuffled": refused(op(lambda x: x + keras.random.shuffle(ops.arange(8, dtype=x.dtype), seed=3)), "TopK"),
    "random numbers with a state": refused(op(lambda x: x + tf.random.normal((1, 8), dtype=x.dtype)), "for itself"),
    "spatial dropout": alone(layers.SpatialDropout1D(0.3), layers.Flatten(), layers.Dense(4), x=(4, 8)),
    # Layers.
    "embedding": Case(
        lambda: keras.Sequential([keras.Input((6,)), layers.Embedding(16, 8), layers.Flatten(), layers.Dense(4)]),
        {"embeddings": (None, "model")},
        x=tokens,
    ),
    "batch normalization": alone(layers.Dense(8), layers.BatchNormalization(), layers.Dense(4)),
    "batch normalization of a divided tensor": Case(after_wide(layers.BatchNormalization(), layers.Dense(4)), WIDE),
    "batch normalization that is divided": Case(
        after_wide(layers.BatchNormalization(name="norm"), layers.Dense(4)),
        {**WIDE, "norm/.*": ("model",)},
        refused="out of the LayoutMap",
    ),
    "batch normalization of divided channels": alone(
        layers.Conv2D(8, 3, name="conv"),
        layers.BatchNormalization(name="norm"),
        layers.Flatten(),
        layers.Dense(4),
        x=IMAGES,
        layouts={**OF_CHANNELS, "norm/.*": ("model",)},
        refused="out of the LayoutMap",
    ),
    "layer and group normalization": alone(
        layers.LayerNormalization(), layers.GroupNormalization(2), layers.RMSNormalization(), layers.Dense(4)
    ),
    "normalization layer": alone(
        layers.Normalization(mean=np.arange(8.0), variance=np.arange(1.0, 9.0)), layers.Dense(4)
    ),
    "convolution": alone(
        layers.Conv2D(8, 3, padding="same", strides=2),
        layers.MaxPooling2D(),
        layers.Flatten(),
        layers.Dense(4),
        x=IMAGES,
    ),
    "divided convolution": alone(
        layers.Conv2D(8, 3, name="conv1"),
        layers.Conv2D(8, 3, padding="same", name="conv2"),
        layers.GlobalAveragePooling2D(),
        layers.Dense(4),
        x=IMAGES,
        layouts=OF_CHANNELS,
    ),
    "transposed convolution": alone(
        layers.Conv2DTranspose(4, 3, strides=2, name="conv"), layers.GlobalMaxPooling2D(), layers.Dense(4), x=IMAGES
    ),
    "convolution of a series": alone(layers.Conv1D(8, 3), layers.Flatten(), layers.Dense(4), x=(8, 4)),
    "depthwise convolution": alone(
        layers.DepthwiseConv2D(3), layers.Flatten(), layers.Dense(4), x=IMAGES, refused="depthwise"
    ),
    "LSTM": alone(layers.LSTM(4), layers.Dense(4), x=(5, 3), refused="unroll=True"),
    "unrolled LSTM": alone(layers.LSTM(4, unroll=True), layers.Dense(4), x=(5, 3)),
    "own tf.Variable": Case(Counter, y=lambda r: r.normal(size=(ROWS, 4)), refused="tf.Variable"),
    "bidirectional GRU": alone(layers.Bidirectional(layers.GRU(4)), layers.Dense(4), x=(5, 3), refused="unroll=True"),
    "separable convolution": alone(
        layers.SeparableConv2D(4, 3), layers.Flatten(), layers.Dense(4), x=IMAGES, refused="depthwise"
    ),
    "divided convolution of a series": alone(
        layers.Conv1D(8, 3, name="conv"),
        layers.Flatten(),
        layers.Dense(4),
        x=(8, 4),
        layouts={"conv/kernel": (None, None, "model"), "conv/bias": ("model",)},
    ),
    "convolution of volumes": alone(layers.Conv3D(4, 2), layers.Flatten(), layers.Dense(4), x=(4, 4, 4, 2)),
    "pooling, padding, cropping": alone(
        layers.ZeroPadding2D(1),
        layers.AveragePooling2D(2),
        layers.UpSampling2D(),
        layers.Cropping2D(1),
        layers.Conv2D(4, 1),
        layers.GlobalAveragePooling2D(),
        x=IMAGES,
    ),
    "einsum dense": alone(
        layers.EinsumDense("abc,cd->abd", output_shape=(4, 8), bias_axes="d", name="einsum"),
        layers.TimeDistributed(layers.Dense(4)),
        layers.Flatten(),
        x=(4, 8),
        layouts={"einsum/kernel": (None, "model"), "einsum/bias": ("model",)},
    ),
    "activations": Case(
        after_wide(layers.PReLU(), layers.ELU(), layers.LeakyReLU(), layers.Softmax(), layers.Dense(4)), WIDE
    ),
    "spectral normalization": alone(layers.SpectralNormalization(layers.Dense(8)), layers.Dense(4)),
    "grouped-query attention": Case(
        grouped_attention,
        {
            "attention/(query|key|value)/kernel": (None, "model", None),
            "attention/(query|key|value)/bias": ("model", None),
        },
        x=lambda random: random.normal(size=(ROWS, 6, 8)),
    ),
    "a model of its own, built in the first step": Case(
        Subclassed, {"first/kernel": (None, "model")}, y=lambda r: r.normal(size=(ROWS, 4))
    ),
    "a layer of its own, which Keras asks for its shape": alone(Block(), layers.Dense(4), layouts=WIDE),
    "own state that is read after it was assigned": alone(layers.Dense(8), RunningMean(), layers.Dense(4)),
    "own train_step with a tape": Case(Taped, {"first/kernel": (None, "model")}, y=lambda r: r.normal(size=(ROWS, 4))),
    "XLA": alone(layers.Dense(8, "relu"), layers.Dense(4), compiled={"jit_compile": True}),
    # Operations on a divided axis.
    "cumulative sum": op(lambda x: ops.cumsum(x, axis=-1)),
    "extremes": op(lambda x: ops.concatenate([ops.max(x, -1, keepdims=True), ops.min(x, -1, keepdims=True)], -1)),
    "index of the largest": op(lambda x: x * ops.cast(ops.expand_dims(ops.argmax(x, -1), -1), x.dtype)),
    "take along axis": op(lambda x: ops.take_along_axis(x, ops.argsort(x, axis=-1), axis=-1)),
    "scatter": op(lambda x: ops.scatter_update(x, np.array([[0, 1], [1, 2]]), ops.sum(x) * np.ones(2))),
    "segments": op(lambda x: ops.transpose(ops.segment_sum(ops.transpose(x), np.array([0, 0, 1, 1, 2, 2, 3, 3]), 4))),
    "stack": op(lambda x: ops.stack([x, 2 * x], axis=1)),
    "slices": op(lambda x: ops.concatenate([x[:, 2:6], x[:, ::2]], -1)),
    "odd slice": refused(op(lambda x: x[:, ::3]), "divisible"),
    "vectorized map": op(lambda x: ops.vectorized_map(lambda row: ops.tanh(row) * ops.sum(row), x)),
    "resized": refused(op(lambda x: ops.image.resize(ops.reshape(x, (-1, 2, 4, 1)), (4, 4))), "LayoutMap"),
    "resized rows": alone(layers.Resizing(4, 4), layers.Flatten(), layers.Dense(4), x=IMAGES),
    "condition": op(lambda x: tf.cond(tf.reduce_sum(x) > 0, lambda: 2 * x, lambda: x)),
    "gradient of its own": op(lambda x: clipped(x) + ops.stop_gradient(x)),
    "products of rows": op(lambda x: ops.matmul(ops.reshape(x, (-1, 8, 1)), ops.reshape(x, (-1, 1, 8)))),
    "products with itself": op(
        lambda x: ops.matmul(ops.expand_dims(x, -1), ops.transpose(ops.expand_dims(x, -1), (0, 2, 1)))
    ),
    "norms": op(lambda x: x / ops.norm(x, axis=-1, keepdims=True)),
    "bincount": refused(
        op(lambda x: x * ops.cast(ops.sum(ops.bincount(ops.cast(x[0] > 0, "int32"), minlength=8)), x.dtype)), "Bincount"
    ),
    "Cholesky": refused(
        op(lambda x: ops.cholesky(ops.einsum("bi,bj->bij", x, x) + 9 * np.eye(8))), "MatrixTriangularSolve"
    ),
    "printing": refused(op(printed), "tf.print()"),
    "pad of one axis of three": Case(
        lambda: keras.Sequential(
            [
                keras.Input((4, 8)),
                layers.Dense(8, name="wide"),
                layers.ZeroPadding1D(1),
                layers.Flatten(),
                layers.Dense(4),
            ]
        ),
        WIDE,
        x=lambda random: random.normal(size=(ROWS, 4, 8)),
    ),
    "pad": op(lambda x: ops.pad(x, [[0, 0], [1, 1]])),
    "split": op(lambda x: ops.concatenate([3 * ops.split(x, 2, axis=-1)[0], ops.split(x, 2, axis=-1)[1]], axis=-1)),
    "tile": op(lambda x: ops.tile(x, [1, 2])),
    "repeat": op(lambda x: ops.repeat(x, 2, axis=-1)),
    "flip": op(lambda x: ops.flip(x, axis=-1)),
    "roll": refused(op(lambda x: ops.roll(x, 1, axis=-1)), "Roll"),
    "reversed sum": op(lambda x: tf.cumsum(x, axis=-1, reverse=True)),
    "sort": op(lambda x: ops.sort(x, axis=-1)),
    "top k": op(lambda x: ops.top_k(x, 3)[0]),
    "top k of divided rows": replace(op(lambda x: ops.top_k(x, 3)[0]), data_parallel=True, layouts={}),
    "order of rows": refused(op(lambda x: ops.take(x, ops.argsort(ops.sum(x, -1)), axis=0)), "divided over the mesh"),
    "index of the smallest": op(lambda x: x * ops.cast(ops.expand_dims(ops.argmin(x, -1), -1), x.dtype)),
    "rows after rows": op(lambda x: tf.reduce_mean(tf.reshape(tf.concat([x, 2 * x], 0), [2, -1, 8]), 0)),
    "large identity": op(lambda x: ops.matmul(ops.tile(x, [1, 8]), ops.eye(64, dtype=x.dtype))),
    "softmax and logsumexp": op(lambda x: ops.softmax(x) + ops.logsumexp(x, axis=-1, keepdims=True)),
    "take and slice": op(lambda x: ops.take(x, np.array([3, 1, 2]), axis=1) * x[:, :1]),
    "einsum": op(lambda x: ops.einsum("bi,bj->bij", x, x)),
    "where and clip": op(lambda x: ops.where(x > 0, x, ops.clip(x, -0.5, 0))),
    "statistics": op(lambda x: ops.concatenate([ops.mean(x, -1, keepdims=True), ops.std(x, -1, keepdims=True)], -1)),
    "reshape and transpose": op(lambda x: ops.transpose(ops.reshape(x, (-1, 2, 4)), (0, 2, 1))),
    "loop": refused(op(lambda x: ops.fori_loop(0, 3, lambda _, v: v * 0.9, x)), "loop"),
    "NumPy function": refused(
        op(lambda x: tf.ensure_shape(tf.numpy_function(np.sin, [x], x.dtype), x.shape)), "Python function"
    ),
    # fit() and compile().
    "metrics": Case(
        after_wide(layers.Dense(1, "sigmoid")),
        WIDE,
        "binary_crossentropy",
        y=lambda r: r.integers(0, 2, (ROWS, 1)),
        compiled={"metrics": ["accuracy", "mse", keras.metrics.Precision, keras.metrics.Recall, keras.metrics.AUC]},
    ),
    "intersection over union": Case(
        after_wide(layers.Softmax()),
        WIDE,
        SPARSE,
        y=classes,
        compiled={"metrics": [lambda: keras.metrics.MeanIoU(8, sparse_y_pred=False)]},
    ),
    "metrics that compute with constants": Case(
        after_wide(layers.Dense(4, "sigmoid")),
        WIDE,
        "binary_crossentropy",
        y=lambda r: r.integers(0, 2, (ROWS, 4)),
        compiled={"metrics": [keras.metrics.R2Score, lambda: keras.metrics.PrecisionAtRecall(0.5)]},
    ),
    "losses of several outputs": Case(
        several_outputs,
        WIDE,
        y=lambda r: [r.normal(size=ROWS), r.integers(0, 2, ROWS)],
        compiled={"loss": ["mse", "binary_crossentropy"], "loss_weights": [1.0, 0.5]},
        fit={"batch_size": 10},
    ),
    "run eagerly": alone(layers.Dense(4), compiled={"run_eagerly": True}, refused="run_eagerly"),
    "several steps in an execution": alone(layers.Dense(4), compiled={"steps_per_execution": 3}),
    "class weights": Case(
        after_wide(layers.Softmax()), WIDE, SPARSE, y=classes, fit={"class_weight": {0: 1.0, 1: 3.0, 2: 0.5, 3: 1.0}}
    ),
    "Adagrad of an embedding that is divided over its words": Case(
        lambda: keras.Sequential([keras.Input((6,)), layers.Embedding(16, 8), layers.Flatten(), layers.Dense(4)]),
        {"embeddings": ("model", None)},
        x=tokens,
        compiled={"optimizer": lambda: keras.optimizers.Adagrad(0.1)},
    ),
    "Adam": optimized(lambda: keras.optimizers.Adam(0.01)),
    "Nadam": optimized(lambda: keras.optimizers.Nadam(0.01)),
    "Adafactor": optimized(lambda: keras.optimizers.Adafactor(0.01)),
    "Muon": optimized(lambda: keras.optimizers.Muon(0.01)),
    "AdamW, clipped, accumulated, averaged": optimized(
        lambda: keras.optimizers.AdamW(0.01, global_clipnorm=0.1, gradient_accumulation_steps=2, use_ema=True)
    ),
}


def train(case: Case) -> dict[str, np.ndarray]:
    keras.utils.set_random_seed(1)
    random = np.random.default_rng(2)
    x = case.x(random)
    model = case.model()
    make_y = case.y or (lambda random: random.normal(size=(ROWS, *model.compute_output_shape(x.shape)[1:])))
    y = make_y(random)
    given = {"optimizer": lambda: keras.optimizers.SGD(0.01, momentum=0.9), "loss": case.loss, **case.compiled}
    given["optimizer"] = given["optimizer"]()
    given["metrics"] = [one() if callable(one) else one for one in given.get("metrics", ())] or None
    model.compile(**given)
    fitted = model.fit(x, y, **{"batch_size": BATCH, "epochs": 2, "shuffle": False, "verbose": 0, **case.fit})
    found = {name: np.asarray(values) for name, values in fitted.history.items()}
    found["evaluated"] = np.asarray(model.evaluate(x, y, verbose=0))
    predicted = model.predict(x, batch_size=BATCH, verbose=0)
    found["predicted"] = np.concatenate(predicted, -1) if isinstance(predicted, list) else predicted
    found |= {f"{i} {variable.path}": variable.numpy() for i, variable in enumerate(model.weights)}
    if keras.distribution.distribution() is not None and case.layouts:
        lines = list(describe(model))
        assert len(lines) == 1, lines
        assert any(not v.value.layout.is_fully_replicated() for v in model.weights)
    return found


def distribution(case: Case) -> Any:
    if case.data_parallel:
        return keras.distribution.DataParallel()
    layouts = keras.distribution.LayoutMap(keras.distribution.DeviceMesh((2, 2), ("batch", "model")))
    for name, axes in case.layouts.items():
        layouts[f".*{name}"] = axes
    return keras.distribution.ModelParallel(layout_map=layouts, batch_dim_name="batch")


def apart(case: Case) -> float:
    """The largest difference from one device."""
    keras.backend.clear_session()
    plain = train(case)
    with installed():
        keras.backend.clear_session()
        with distribution(case).scope():
            found = train(case)
    pairs = zip(plain.values(), found.values(), strict=True)
    return float(max(np.max(np.abs(a - b) / np.maximum(1, np.abs(a))) for a, b in pairs))


def main(names: list[str]) -> None:
    for name in names or CASES:
        try:
            line: Any = apart(CASES[name])
        except ConfigError as error:
            line = f"{error}: {error.fix}"
        except Exception as error:
            line = {"failed": f"{type(error).__name__}: {error}"}
        print("case", json.dumps([name, line]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
