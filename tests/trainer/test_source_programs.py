"""The fifteen programs of the project's source documents, rewritten: one command runs each, or names the line to
change. None of them imports this project.
"""

from __future__ import annotations

import pytest
from tests.trainer.harness import typed

HEAD = """\
import json, os
import numpy as np
import tensorflow as tf
x = np.random.default_rng(1).normal(size=(64, 8)).astype("float32")
y = (x.sum(1, keepdims=True) > 0).astype("float32")
def net():
    return tf.keras.Sequential([tf.keras.Input((8,)), tf.keras.layers.Dense(4, "relu"), tf.keras.layers.Dense(1)])
def compiled():
    model = net()
    model.compile("sgd", "mse")
    return model
"""
FIT = "with strategy.scope():\n    model = compiled()\nmodel.fit(x, y, batch_size=16, epochs=1)\n"
MIRRORED = "strategy = tf.distribute.MirroredStrategy()\n"
RESOLVED = "resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()\n"
WORKERS = "strategy = tf.distribute.MultiWorkerMirroredStrategy()\n"
OF_RESOLVER = "strategy = tf.distribute.MultiWorkerMirroredStrategy(resolver)\n"
DISTRIBUTED = "data = strategy.experimental_distribute_dataset(data)\n"
ROWS = "data = tf.data.Dataset.from_tensor_slices((x, y))"
TF_CONFIG = """\
cluster = {"worker": ["localhost:12345", "localhost:23456"]}
os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 0}})
"""
LOOP = """\
with strategy.scope():
    model = net()
    optimizer = tf.keras.optimizers.SGD(0.01)
@tf.function
def train_step(batch):
    def step(a, b):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(model(a) - b)) / 16
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
        return loss
    return strategy.reduce("SUM", strategy.run(step, args=batch), axis=None)
"""
ON_DEVICES = f"{ROWS}.batch(16)\n{DISTRIBUTED}{LOOP}"
EACH = "for batch in data:\n    loss = train_step(batch)\nprint('trained', np.isfinite(float(loss)))\n"
ACCUMULATION = f"""\
model, optimizer, kept = net(), tf.keras.optimizers.SGD(0.01), None
{ROWS}.batch(8)
for number, (a, b) in enumerate(data, 1):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(a) - b))
    found = tape.gradient(loss, model.trainable_variables)
    kept = found if kept is None else [p + q for p, q in zip(kept, found)]
    if number % 4 == 0:
        optimizer.apply_gradients(zip(kept, model.trainable_variables))
        kept = None
print('trained', np.isfinite(float(loss)))
"""
TWO, DEVICES = ["--workers", "2"], ["--gpus", "2"]
TRAINED, ITS_OWN = "train: loss", "trained True"
REMOVE = "the program sets TF_CONFIG at train.py:13, and that is the job's; remove the line"

PROGRAMS = {
    "1 mirrored": (MIRRORED + FIT, DEVICES, 0, TRAINED),
    "2 resolver": (RESOLVED + OF_RESOLVER + FIT, TWO, 0, TRAINED),
    "3 parameter servers, fit": (
        RESOLVED + "strategy = tf.distribute.experimental.ParameterServerStrategy(resolver)\n" + FIT, TWO, 0, TRAINED,
    ),
    "3 parameter servers, coordinator": (
        RESOLVED + "strategy = tf.distribute.experimental.ParameterServerStrategy(resolver)\n"
        "coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)\n" + LOOP
        + "loss = coordinator.schedule(train_step, args=((x[:16], y[:16]),))\ncoordinator.join()\n"
        "print('trained', np.isfinite(loss.fetch()))\n", TWO, 0, ITS_OWN,
    ),
    "4 distributed dataset": (
        MIRRORED + f"{ROWS}.batch(32)\n{DISTRIBUTED}with strategy.scope():\n    model = compiled()\nmodel.fit(data)\n",
        DEVICES, 0, TRAINED,
    ),
    "5 TPU": (
        "resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu='')\n"
        + OF_RESOLVER + FIT, TWO, 1, "remove the resolver",
    ),
    "6 accumulation": (ACCUMULATION, [], 0, ITS_OWN),
    "7 inference and training": (
        MIRRORED + FIT + "print('trained', model.predict(x).shape == (64, 1))\n", [], 0, ITS_OWN,
    ),
    "8 strategy.run": (MIRRORED + ON_DEVICES + EACH, DEVICES, 0, ITS_OWN),
    "9 compiled outside": (
        MIRRORED + f"{ROWS}.shuffle(64).batch(16, drop_remainder=True).prefetch(1)\n{DISTRIBUTED}"
        "model = compiled()\nmodel.fit(data)\n", DEVICES, 0, TRAINED,
    ),
    "10 ports by hand": (TF_CONFIG + WORKERS + ON_DEVICES + EACH, TWO, 1, REMOVE),
    "11 an iterator": (
        WORKERS + f"{ROWS}.batch(16).repeat()\n{DISTRIBUTED}" + LOOP
        + "batches = iter(data)\nfor _ in range(4):\n    loss = train_step(next(batches))\n"
        "print('trained', np.isfinite(float(loss)))\n", TWO, 0, ITS_OWN,
    ),
    "12 JSON and a resolver": (TF_CONFIG + RESOLVED + WORKERS + ON_DEVICES + EACH, TWO, 1, REMOVE),
    "13 evaluated": (MIRRORED + FIT + "print('trained', np.isfinite(model.evaluate(x, y)))\n", DEVICES, 0, ITS_OWN),
    "14 experimental_run_v2": (
        MIRRORED + ON_DEVICES.replace(".run(", ".experimental_run_v2(") + EACH,
        DEVICES, 1, "strategy.experimental_run_v2() is strategy.run() in this TensorFlow, at train.py:25",
    ),
    "15 cached": (
        MIRRORED + f"{ROWS}.cache().shuffle(10000).batch(32).prefetch(tf.data.AUTOTUNE)\n{DISTRIBUTED}"
        "with strategy.scope():\n    model = compiled()\nmodel.fit(data, epochs=2)\n", DEVICES, 0, TRAINED,
    ),
}  # fmt: skip


@pytest.mark.deep
@pytest.mark.parametrize("program", PROGRAMS)
def test_it_runs_or_names_the_line_to_change(program, tmp_path):
    text, flags, code, said = PROGRAMS[program]
    ended, printed = typed(tmp_path, HEAD + text, flags)
    assert (ended, said in printed) == (code, True), printed
