"""A training loop written by hand, with progress, resume and a clean stop; see docs/own-loops.md."""

import os
import sys
from pathlib import Path

import keras
import tensorflow as tf

import tfgpujob_trainer as tfgpu

STEPS = int(os.environ.get("STEPS", "1000"))
OUTPUT = os.environ.get("OUTPUT", "/output" if Path("/output").is_dir() else "output")  # in a pod, or beside it

strategy = tfgpu.strategy()
keras.utils.set_random_seed(1)

x = tf.random.stateless_normal([512, 16], seed=[1, 1], dtype=keras.config.floatx())
y = tf.reduce_sum(x, axis=1, keepdims=True)
batches = tf.data.Dataset.from_tensor_slices((x, y)).repeat().batch(64)  # the global batch size

with strategy.scope():
    model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(32, "relu"), keras.layers.Dense(1)])
    optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
    optimizer.build(model.trainable_variables)


@tf.function
def train_step(batch):
    def of_replica(x, y):
        with tf.GradientTape() as tape:
            # A sum, divided by the rows of all replicas: then the optimizer's sum over them is the mean.
            loss = tf.reduce_sum(tf.square(model(x, training=True) - y)) / 64
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    return strategy.reduce("SUM", strategy.run(of_replica, args=batch), axis=None)


checkpoint = tfgpu.checkpoint(OUTPUT, model=model, optimizer=optimizer)
first = checkpoint.restore()
for step, batch in enumerate(tfgpu.shard(batches.skip(first).take(STEPS - first)), first + 1):
    loss = train_step(batch)
    tfgpu.report(step=step, steps=STEPS, loss=loss, examples=64)
    stop = tfgpu.should_stop()
    if stop or step % 100 == 0 or step == STEPS:
        checkpoint.save(step)
    if stop:
        sys.exit(143)
print("trained", float(loss) if first < STEPS else "before")
