"""Programs by chance, for tests/trainer/differential.py: whole scripts, put together from pieces of what people write.

The first piece of each table is the simplest: Hypothesis shrinks a program that fails towards these.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st


def _lines(text: str) -> list[str]:
    return text.strip("\n").splitlines()


def _blocks(text: str) -> list[str]:
    return [f"\n{block.strip()}\n" for block in text.split("\n# or\n")]


HEAD = """\
import json
import os

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

keras.config.set_floatx("float64")
keras.config.set_dtype_policy("float64")
keras.utils.set_random_seed(3)
INDEX = json.loads(os.environ.get("TF_CONFIG") or "{}").get("task", {}).get("index", 0)
BETA = tf.Variable(0.0, dtype="float64", trainable=False)
rng = np.random.default_rng(1)"""

TAIL = """
evaluated = model.evaluate(x, y, batch_size=BATCH, verbose=0, return_dict=True)
found = {f"weight {i}": weight for i, weight in enumerate(model.get_weights())}
found |= {f"history {name}": np.asarray(values) for name, values in history.history.items()}
found |= {f"evaluated {name}": value for name, value in evaluated.items()}
found |= {"beta": BETA.numpy(), "iterations": int(model.optimizer.iterations)}
found["predicted"] = model.predict(x, batch_size=BATCH, verbose=0)
np.savez(os.environ["FOUND"], **found)
"""

INPUTS = {
    "rng.normal(size=(ROWS, 4))": ("keras.Input((4,))", [""]),
    "rng.normal(size=(ROWS, 4, 4, 1))": (
        "keras.Input((4, 4, 1))",
        _lines("""
layers.Flatten()
layers.Conv2D(3, 2, activation="tanh"), layers.Flatten()
layers.SeparableConv2D(2, 2), layers.GlobalAveragePooling2D()
"""),
    ),
    "rng.integers(0, 9, size=(ROWS, 5))": (
        'keras.Input((5,), dtype="int32")',
        _lines("""
layers.Embedding(9, 3), layers.GlobalAveragePooling1D()
layers.Embedding(9, 3, mask_zero=True), layers.LSTM(3)
layers.Embedding(9, 3, embeddings_regularizer="l2"), layers.Flatten()
layers.Embedding(9, 3, mask_zero=True), layers.Bidirectional(layers.GRU(2))
"""),
    ),
}
LAYERS = _lines("""
layers.Dense(4, "tanh")
layers.Dense(4, kernel_regularizer="l2", activity_regularizer="l2")
layers.BatchNormalization(synchronized=True)
layers.LayerNormalization()
layers.Dense(4, "relu", trainable=False)
layers.Dropout(0.3)
layers.BatchNormalization(trainable=False)
layers.BatchNormalization()
layers.SpectralNormalization(layers.Dense(4))
""")

# What a layer keeps, and how it changes it.
STATES = _lines("""
count | self.kept.assign_add(1)
number | self.kept.assign_add(1.0)
count | self.kept.assign_add(ops.cast(ops.shape(z)[0], "int64"))
number | self.kept.assign_add(ops.sum(z))
vector | self.kept.assign(ops.maximum(self.kept, ops.max(z, axis=0)))
vector | self.kept.assign(0.9 * self.kept + 0.1 * ops.mean(z, axis=0))
vector | self.kept.assign(0.9 * self.kept + 0.1 * ops.sum(z, axis=0))
vector | self.kept.assign(ops.mean(z, axis=0))
plain | self.kept.assign_add(ops.sum(z * z))
count | self.kept.assign_add(ops.sum(ops.cast(z > 0.5, "int64")))
count | self.kept.assign_add(ops.sum(ops.cast(z > 2.5, "int64")))
vector | self.kept.assign(ops.minimum(self.kept, ops.min(z, axis=0)))
vector | self.kept.assign(0.9 * self.kept + 0.1 * ops.std(z, axis=0))
queue | self.kept.assign(ops.concatenate([z, self.kept])[:6])
number | self.kept.assign(ops.where(ops.mean(z) > 0.05, self.kept + ops.sum(z), self.kept))
number | self.kept.assign_add(ops.sum(z) / BATCH)
number | self.kept.assign(ops.maximum(0.9 * self.kept, ops.max(ops.abs(z))))
""")
_WEIGHT = 'self.add_weight(shape=SHAPE, initializer="zeros", trainable=False, dtype="float64")'
KEPT = {
    "count": _WEIGHT.replace("SHAPE", "()").replace("float64", "int64"),
    "number": _WEIGHT.replace("SHAPE", "()"),
    "vector": _WEIGHT.replace("SHAPE", "(z[-1],)"),
    "queue": _WEIGHT.replace("SHAPE", "(6, z[-1])"),
    "plain": 'tf.Variable(0.0, dtype="float64", trainable=False)',
}
STATE = """
class State(layers.Layer):
    def build(self, z):
        self.kept = KEPT

    def call(self, z, training=False):
        BEFORE
        if WHEN:
            CHANGE
        AFTER
        return z + 0.01 * ops.mean(ops.cast(kept, z.dtype))
"""
ADDS = """
class Added(layers.Layer):
    def call(self, z):
        self.add_loss(ADDED)
        return z
"""
ADDED = _lines("""
0.1 * ops.mean(ops.square(z))
0.1 * ops.sum(ops.square(z)) / BATCH
0.01 * ops.sum(ops.square(z))
tf.convert_to_tensor(BETA) * ops.mean(ops.square(z))
tf.convert_to_tensor(BETA) * ops.sum(ops.square(z))
0.1 * ops.mean(ops.var(z, axis=0))
0.1 * ops.max(ops.square(z))
""")
LOSSES = {
    "rng.normal(size=(ROWS, 2))": _lines("""
"mse"
keras.losses.Huber()
keras.losses.MeanSquaredError(reduction="sum")
keras.losses.MeanAbsoluteError(reduction="mean_with_sample_weight")
lambda y_true, y_pred: ops.mean(SQUARES, axis=-1)
lambda y_true, y_pred: ops.mean(SQUARES)
lambda y_true, y_pred: ops.sum(SQUARES) / BATCH
lambda y_true, y_pred: ops.sum(SQUARES)
lambda y_true, y_pred: ops.sqrt(ops.mean(SQUARES))
lambda y_true, y_pred: ops.sum(SQUARES * (y_true > 0)) / (ops.sum(ops.cast(y_true > 0, "float64")) + 1)
lambda y_true, y_pred: -ops.mean(ops.logsumexp(ops.matmul(y_pred, ops.transpose(y_true)), axis=-1))
"""),
    "rng.integers(0, 3, ROWS)": _lines("""
keras.losses.SparseCategoricalCrossentropy(from_logits=True)
keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")
keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=1)
"""),
}
METRICS = {
    "rng.normal(size=(ROWS, 2))": _lines("""
[]
["mae"]
[keras.metrics.RootMeanSquaredError(), keras.metrics.R2Score()]
[lambda y_true, y_pred: ops.mean(SQUARES)]
[lambda y_true, y_pred: ops.max(SQUARES, axis=-1)]
[Sums()]
[Rows()]
[Largest()]
"""),
    "rng.integers(0, 3, ROWS)": ["[]", '["accuracy"]', '[keras.metrics.SparseCategoricalCrossentropy(name="ce")]'],
}
CLASSES = {
    "Sums": """
class Sums(keras.metrics.Metric):
    def __init__(self):
        super().__init__(name="sums")
        self.total = self.add_weight(shape=(), initializer="zeros", name="total")
        self.calls = self.add_weight(shape=(), initializer="zeros", name="calls")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.total.assign_add(ops.sum(y_pred))
        self.calls.assign_add(1.0)

    def result(self):
        return self.total / self.calls
""",
    "Rows": """
class Rows(keras.metrics.Metric):
    def __init__(self):
        super().__init__(name="rows")
        self.count = self.add_weight(shape=(), initializer="zeros", name="count")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.count.assign_add(ops.cast(ops.shape(y_true)[0], self.dtype))

    def result(self):
        return self.count
""",
    "Largest": """
class Largest(keras.metrics.Metric):
    def __init__(self):
        super().__init__(name="largest")
        self.value = self.add_weight(shape=(), initializer="zeros", name="value")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.value.assign(ops.maximum(self.value, ops.max(y_pred)))

    def result(self):
        return self.value
""",
    "Falling": """
class Falling(keras.optimizers.schedules.LearningRateSchedule):
    def __call__(self, step):
        return 0.05 / (1.0 + ops.cast(step, "float64"))

    def get_config(self):
        return {}
""",
    "Numbers": """
class Numbers(keras.utils.PyDataset):
    def __len__(self):
        return -(-ROWS // BATCH)

    def __getitem__(self, index):
        return x[index * BATCH : (index + 1) * BATCH], y[index * BATCH : (index + 1) * BATCH]
""",
    "batches": """
def batches():
    while True:
        for start in range(0, ROWS, BATCH):
            yield x[start : start + BATCH], y[start : start + BATCH]
""",
    "COUNTER": '\nCOUNTER = tf.Variable(0.0, dtype="float64", trainable=False)\n',
}
RATES = _lines("""
0.05
keras.optimizers.schedules.ExponentialDecay(0.05, 3, 0.5)
keras.optimizers.schedules.PiecewiseConstantDecay([2, 4], [0.05, 0.01, 0.03])
Falling()
""")
OPTIMIZERS = _lines("""
keras.optimizers.SGD(GIVEN)
keras.optimizers.SGD(GIVEN, momentum=0.9, nesterov=True)
keras.optimizers.Adam(GIVEN)
keras.optimizers.AdamW(GIVEN)
keras.optimizers.RMSprop(GIVEN)
keras.optimizers.Adafactor(GIVEN, epsilon_1=1e-9)
Mine(GIVEN)
keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(GIVEN), initial_scale=8.0, dynamic_growth_steps=2)
keras.optimizers.LossScaleOptimizer(Mine(GIVEN), initial_scale=8.0)
""")
CLIPS = _lines("""
, clipnorm=0.1
, global_clipnorm=0.1
, clipvalue=0.01
, weight_decay=0.1
, use_ema=True, ema_momentum=0.8
, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=2
, gradient_accumulation_steps=2
""")
MINE = _blocks("""
class Mine(keras.optimizers.SGD):
    def apply_gradients(self, grads_and_vars, **more):
        pairs = [(tf.convert_to_tensor(g), v) for g, v in grads_and_vars]
        return super().apply_gradients([(g - 0.5 * ops.mean(g), v) for g, v in pairs], **more)
# or
class Mine(keras.optimizers.SGD):
    def apply(self, grads, trainable_variables=None):
        grads = [tf.convert_to_tensor(g) for g in grads]
        size = ops.sqrt(sum(ops.sum(g * g) for g in grads))
        super().apply([g / (1.0 + size) for g in grads], trainable_variables)
# or
class Mine(keras.optimizers.Adam):
    def update_step(self, gradient, variable, learning_rate):
        gradient = tf.convert_to_tensor(gradient)
        super().update_step(0.5 * gradient + 0.1 * ops.tanh(gradient), variable, learning_rate)
# or
class Mine(keras.optimizers.Optimizer):
    def build(self, variables):
        super().build(variables)
        self.slots = [self.add_variable_from_reference(v, "slot") for v in variables]
        self.steps = self.add_variable(shape=(), initializer="zeros", dtype="int64", name="steps")

    def apply(self, grads, trainable_variables=None):
        super().apply(grads, trainable_variables)
        self.steps.assign_add(1)

    def update_step(self, gradient, variable, learning_rate):
        slot = self.slots[self._get_variable_index(variable)]
        slot.assign(0.5 * slot + tf.convert_to_tensor(gradient))
        self.assign_sub(variable, ops.cast(learning_rate, "float64") * slot / (1.0 + ops.cast(self.steps, "float64")))
""")
READS = """
FACTOR = 1.0

class Reads(layers.Layer):
    factor, pair = 1.0, (1.0, 2.0)

    def __init__(self):
        super().__init__(name="reads")
        self.parts = {"a": [1.0]}

    def call(self, z):
        return z * READ
"""
SETS = """
class Hook(keras.callbacks.Callback):
    def WHEN(self, epoch, logs=None):
        global FACTOR
        reads, value = self.model.get_layer("reads"), 0.5 + epoch
        SET
"""
# A value of Python that a layer reads, and how a callback sets it.
VALUES = _lines("""
self.factor | reads.factor = value
FACTOR | FACTOR = value
self.parts["a"][0] | reads.parts["a"][0] = value
self.parts["a"][0] | reads.parts = {"a": [value]}
sum(self.parts["a"]) | reads.parts["a"].append(value)
self.pair[0] | reads.pair = (value, 2.0)
getattr(self, "late", 1.0) | reads.late = value
""")
GRADIENTS = """
@tf.custom_gradient
def given_back(z):
    return tf.identity(z), lambda g: GIVEN

class GivenBack(layers.Layer):
    def call(self, z):
        return given_back(z)
"""
GIVEN = _lines("""
-0.5 * g
tf.clip_by_value(g, -0.01, 0.01)
g / (1.0 + tf.norm(g))
""")
CALLBACKS = _lines("""
keras.callbacks.EarlyStopping("loss", mode="max", patience=1, restore_best_weights=True)
keras.callbacks.LearningRateScheduler(lambda epoch: 0.05 / (1 + epoch))
keras.callbacks.ReduceLROnPlateau("loss", mode="max", patience=1, factor=0.1)
keras.callbacks.SwapEMAWeights()
""")
HOOKS = _blocks("""
class Hook(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        BETA.assign(epoch * 0.1)
# or
class Hook(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        BETA.assign_add(0.1 if epoch else 0.05)
# or
class Hook(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        for variable in self.model.trainable_variables:
            variable.assign(0.9 * variable)
# or
class Hook(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        self.model.optimizer.learning_rate = 0.05 / (1 + batch)
# or
class Hook(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.mean = [np.zeros_like(w) for w in self.model.get_weights()]

    def on_train_batch_end(self, batch, logs=None):
        self.mean = [0.5 * m + 0.5 * w for m, w in zip(self.mean, self.model.get_weights())]

    def on_train_end(self, logs=None):
        self.model.set_weights(self.mean)
# or
class Hook(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.teacher = [tf.Variable(w) for w in self.model.get_weights()]

    def on_epoch_end(self, epoch, logs=None):
        for teacher, weight in zip(self.teacher, self.model.get_weights()):
            teacher.assign(0.5 * teacher + 0.5 * weight)
        self.model.set_weights([teacher.numpy() for teacher in self.teacher])
# or
class Hook(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        logs["measured"] = self.model.evaluate(x, y, batch_size=BATCH, verbose=0, return_dict=True)["loss"]
# or
class Hook(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 1:
            self.model.stop_training = True
# or
class Hook(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.seen, self.best, self.kept = np.zeros(2), -np.inf, []

    def on_epoch_end(self, epoch, logs=None):
        self.seen = self.seen + [1, logs["loss"]]
        if logs["loss"] > self.best:
            self.best, self.kept = logs["loss"], self.model.get_weights()
        self.model.optimizer.learning_rate = 0.05 / (1 + self.seen[0])

    def on_train_end(self, logs=None):
        self.model.set_weights([0.5 * w + 0.5 * k for w, k in zip(self.model.get_weights(), self.kept)])
# or
class Hook(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        self.model.layers[-1].trainable = False
# or
class Hook(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.model.layers[-1].trainable = False
# or
class Hook(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.model.optimizer = keras.optimizers.SGD(0.5)
""")
ON_CHIEF = _lines("""
GIVEN
GIVEN if INDEX == 0 else []
[keras.callbacks.LearningRateScheduler(lambda epoch: 0.01)] if INDEX == 0 else []
[*GIVEN, keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: WEIGHT.assign(0.9 * WEIGHT))] if INDEX == 0 else []
""")
DATA = _lines("""
x, y, batch_size=BATCH
x, y, batch_size=BATCH, sample_weight=np.linspace(0, 2, ROWS)
x, y, batch_size=BATCH, validation_split=0.3
DATASET((x, y)).batch(BATCH)
DATASET((x, y)).batch(BATCH, drop_remainder=True)
DATASET((x, y)).batch(BATCH).repeat(), steps_per_epoch=-(-ROWS // BATCH)
DATASET((x, y, np.linspace(0, 2, ROWS))).batch(BATCH).prefetch(2)
Numbers()
batches(), steps_per_epoch=-(-ROWS // BATCH)
""")
VALIDATION = _lines("""
, validation_data=(x[:7], y[:7])
, validation_data=(x, y), validation_batch_size=5
, validation_data=(x[:7], y[:7], np.linspace(1, 2, 7)), validation_freq=2
""")
AGAIN = _lines("""
history = model.fit(x, y, batch_size=BATCH, epochs=EPOCHS + 1, initial_epoch=EPOCHS, shuffle=False, verbose=0)
model.layers[-1].trainable = False; model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0)
model.layers[-1].trainable = False; model.compile("sgd", loss); model.fit(x, y, shuffle=False, verbose=0)
""")
COMPUTED = _lines("""
ops.mean(SQUARES)
super().compute_loss(x, y, y_pred, sample_weight)
ops.sum(SQUARES)
ops.sum(SQUARES) / BATCH + sum(self.losses)
ops.sqrt(ops.mean(SQUARES))
""")
COMPUTES = """
class Model(keras.Model):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        y_true = y
        return COMPUTED
"""
STEP = """
class Model(keras.Model):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        HELD
        USED

    def train_step(self, data):
        x, y_true = data[:2]
        CHANGE
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = LOSS
        weights = self.trainable_variables
        grads = tape.gradient(loss, weights)
        GRADS
        APPLY
        return RETURNED
"""
HELD = _lines("""
pass | pass | 1.0
self.counter = tf.Variable(0.0, dtype="float64", trainable=False) | self.counter.assign_add(1.0) | self.counter
self.held = {"it": [tf.Variable(0.0, dtype="float64")]} | self.held["it"][0].assign_add(1.0) | self.held["it"][0]
self.part = tf.Module(); self.part.it = tf.Variable(0.0, dtype="float64") | self.part.it.assign_add(1.0) | self.part.it
pass | COUNTER.assign_add(1.0) | tf.convert_to_tensor(COUNTER)
self.sum = tf.Variable(0.0, dtype="float64", trainable=False) | self.sum.assign_add(ops.sum(x)) | self.sum
""")
STEP_LOSSES = _lines("""
ops.mean(SQUARES)
ops.sum(SQUARES)
self.compute_loss(y=y_true, y_pred=y_pred)
ops.sum(SQUARES) / BATCH
ops.mean(SQUARES) + sum(self.losses)
ops.mean(SQUARES) + tf.convert_to_tensor(BETA) * ops.mean(ops.var(y_pred, axis=0))
""")
GRADS = _lines("""
grads, _ = tf.clip_by_global_norm(grads, 0.5)
grads = [g / ops.cast(1.0 + 0.1 * CHANGED, "float64") for g in grads]
grads = [ops.sign(g) for g in grads]
""")
APPLIED = _lines("""
pass | self.optimizer.apply(grads, weights)
pass | self.optimizer.apply_gradients(zip(grads, weights))
self.other = keras.optimizers.Adam(0.02) | TWO(self.optimizer, self.other)
self.two = {"a": keras.optimizers.Adam(0.02), "b": keras.optimizers.SGD(0.1, 0.9)} | TWO(self.two["a"], self.two["b"])
self.two = [keras.optimizers.Adam(0.02), keras.optimizers.SGD(0.1, 0.9)] | TWO(self.two[0], self.two[1])
self.part = keras.Sequential(); self.part.compile("adam") | TWO(self.part.optimizer, self.optimizer)
pass | [w.assign_sub(0.05 * g) for g, w in zip(grads, weights)]
""")
RETURNED = _lines("""
{"loss": loss}
{"loss": loss, "size": ops.mean(ops.abs(y_pred))}
{"loss": loss, "changed": ops.cast(CHANGED, "float64")}
""")


@dataclass(frozen=True, slots=True)
class Program:
    """A script, and how it is run by the trainer: `here`, as two `workers`, or `resumed`."""

    source: str
    mode: str


@st.composite
def programs(draw: Callable[..., Any]) -> Program:
    """Programs by chance."""

    def one(pieces: Sequence[Any]) -> Any:
        return pieces[draw(st.integers(0, len(pieces) - 1))]

    def some(pieces: Sequence[str], of: int, none: str = "") -> str:
        """One of the pieces in one of `of` programs."""
        chosen: str = one([*pieces]) if draw(st.integers(0, of - 1)) == of - 1 else none
        return chosen

    mode = {17: "workers", 18: "resumed", 19: "resumed"}.get(draw(st.integers(0, 19)), "here")
    often = mode == "resumed"  # what callbacks set matters there
    x, y = one(list(INPUTS)), one(list(LOSSES))
    inputs, fronts = INPUTS[x]
    vector = y.endswith("2))")
    parts, stack = [], [one(fronts), some(LAYERS, 2), some(LAYERS, 3)]
    if draw(st.booleans()):
        stack.append(f"State({some(['trainable=False'], 3)})")
        parts.append(_state(one, some))
    if vector and draw(st.integers(0, 3)) == 3:
        stack.append("Added()")
        parts.append(ADDS.replace("ADDED", one(ADDED)))
    if given_back := some(GIVEN, 6):
        stack.append("GivenBack()")
        parts.append(GRADIENTS.replace("GIVEN", given_back))
    if value := some(VALUES, 2 if often else 3):
        stack.append("Reads()")
        parts.append(READS.replace("READ", value.split(" | ")[0]))
    own = one(["keras.Model", "keras.Model", "step", "computes"] if vector else ["keras.Model"])
    if own == "computes":
        parts.append(COMPUTES.replace("COMPUTED", one(COMPUTED)))
    if own == "step":
        parts.append(_step(one, some))
    clips = some(CLIPS[:4] if own == "step" else CLIPS, 3)
    callback, hook = _callback(one, some, value, often=often)
    if "Swap" in callback:
        clips = CLIPS[4]
    optimizer = one(OPTIMIZERS[:7] if own == "step" else OPTIMIZERS)
    sets_rate = (
        any(word in callback + hook for word in ("LearningRate", "Plateau", "learning_rate")) or mode == "workers"
    )
    optimizer = optimizer.replace("GIVEN", ("0.05" if sets_rate else one(RATES)) + clips)
    mine = one(MINE) if "Mine" in optimizer else ""
    metric = one(METRICS[y]) if own != "step" else "None"
    callbacks = one(ON_CHIEF).replace("GIVEN", f"[{callback}]") if mode == "workers" else f"[{callback}]"
    data = one(DATA if vector else [*DATA, "x, y, batch_size=BATCH, class_weight={0: 1.0, 1: 2.0, 2: 0.5}"])
    data += "" if "validation" in data else some(VALIDATION, 3)
    last = f"layers.Dense({2 if vector else 3})"
    body = f"""
ROWS, BATCH, EPOCHS = {one([24, 25, 13, 31])}, {one([8, 6, 12])}, {one([2, 3])}
x, y = {x}, {y}
inputs = z = {inputs}
for layer in [{", ".join(layer for layer in [*stack, last] if layer)}]:
    z = layer(z)
model = {own if own == "keras.Model" else "Model"}(inputs, z)
WEIGHT = model.trainable_variables[-1]
loss = {one(LOSSES[y])}
model.compile({optimizer}, loss, metrics={metric})
history = model.fit({data}, epochs=EPOCHS, shuffle=False, verbose=0, callbacks={callbacks})
{some(AGAIN, 4)}"""
    parts += [mine, hook]
    parts += [text for name, text in CLASSES.items() if re.search(rf"\b{name}\b", body + "".join(parts))]
    source = "\n".join([HEAD, *(part for part in parts if part), body, TAIL])
    source = source.replace("SQUARES", "ops.square(y_true - y_pred)")
    return Program(source.replace("DATASET", "tf.data.Dataset.from_tensor_slices"), mode)


def _callback(one: Callable[..., Any], some: Callable[..., Any], value: str, *, often: bool) -> tuple[str, str]:
    """A callback, and the class of one that is the script's own; `value`: one of VALUES that it sets."""
    if not value:
        callback = some([*CALLBACKS, *["Hook()"] * 8], 1 if often else 2)
        return callback, one(HOOKS) if callback == "Hook()" else ""
    when = one(["on_epoch_begin", "on_epoch_end", "on_train_begin"])
    hook = _filled(SETS, WHEN=when, SET=value.split(" | ")[1])
    return "Hook()", hook.replace("epoch, logs", "logs").replace(" + epoch", "") if "train" in when else hook


def _state(one: Callable[..., Any], some: Callable[..., Any]) -> str:
    kept, change = one(STATES).split(" | ")
    read = "kept = tf.convert_to_tensor(self.kept)"
    after = some([read], 4)
    return _filled(
        STATE,
        KEPT=KEPT[kept],
        BEFORE="" if after else read,
        WHEN=some(["True"], 6, "training"),
        CHANGE=change,
        AFTER=after,
    )


def _step(one: Callable[..., Any], some: Callable[..., Any]) -> str:
    (held, change, changed), (used, apply) = one(HELD).split(" | "), one(APPLIED).split(" | ")
    if two := re.fullmatch(r"TWO\((.*), (.*)\)", apply):
        first, second = two.groups()
        apply = f"{first}.apply(grads[:1], weights[:1])\n        {second}.apply(grads[1:], weights[1:])"
    filled = _filled(
        STEP,
        HELD=held,
        USED=used,
        CHANGE=change,
        LOSS=one(STEP_LOSSES),
        GRADS=some(GRADS, 2),
        APPLY=apply,
        RETURNED=one(RETURNED),
    )
    return filled.replace("CHANGED", changed)


def _filled(template: str, **pieces: str) -> str:
    """The template with these in place of words; a line of which nothing is left, or pass, is left out."""
    filled = re.sub(rf"\b({'|'.join(pieces)})\b", lambda word: pieces[word[0]], template)
    return "\n".join(line for line in filled.split("\n") if not line or line.strip() not in ("", "pass")) + "\n"
