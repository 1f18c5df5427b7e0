"""Many workers, as TensorFlow's guide has it: an endless dataset, and steps_per_epoch."""

import json
import os

import numpy as np
import tensorflow as tf

PER_WORKER_BATCH_SIZE = 16


def digits_dataset(batch_size):
    rng = np.random.default_rng(1)
    y = rng.integers(0, 10, size=400)
    x = rng.normal(size=(400, 8, 8)) + y[:, None, None] / 5
    return tf.data.Dataset.from_tensor_slices((x, y)).shuffle(400).repeat().batch(batch_size)


def build_and_compile_cnn_model():
    model = tf.keras.Sequential(
        [
            tf.keras.layers.InputLayer(input_shape=(8, 8)),
            tf.keras.layers.Reshape(target_shape=(8, 8, 1)),
            tf.keras.layers.Conv2D(4, 3, activation="relu"),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(10),
        ]
    )
    model.compile(
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=tf.keras.optimizers.SGD(learning_rate=0.01),
        metrics=["accuracy"],
    )
    return model


tf_config = json.loads(os.environ["TF_CONFIG"])
num_workers = len(tf_config["cluster"]["worker"])
strategy = tf.distribute.MultiWorkerMirroredStrategy()
global_batch_size = PER_WORKER_BATCH_SIZE * num_workers
multi_worker_dataset = digits_dataset(global_batch_size)

with strategy.scope():
    model = build_and_compile_cnn_model()

history = model.fit(multi_worker_dataset, epochs=3, steps_per_epoch=7)
