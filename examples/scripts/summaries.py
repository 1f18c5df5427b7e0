"""Summaries for TensorBoard, as Kubeflow's example has it: histograms of weights, scalars and pictures."""

import keras
import numpy as np
import tensorflow as tf

log_dir = "logs/mnist_with_summaries"


class Summaries(keras.callbacks.Callback):
    """Mean, deviation, range and a histogram of each layer's weights, and a few of the images."""

    def __init__(self, folder, pictures):
        super().__init__()
        self.writer, self.pictures = tf.summary.create_file_writer(folder), pictures

    def on_epoch_end(self, epoch, logs=None):
        with self.writer.as_default(step=epoch):
            tf.summary.image("input", self.pictures, max_outputs=4)
            for variable in self.model.trainable_variables:
                values = variable.numpy()
                tf.summary.scalar(f"{variable.path}/mean", values.mean())
                tf.summary.scalar(f"{variable.path}/stddev", values.std())
                tf.summary.histogram(f"{variable.path}/histogram", values)
            for name, value in (logs or {}).items():
                tf.summary.scalar(name, value)
        self.writer.flush()


rng = np.random.default_rng(8)
y = rng.integers(0, 10, size=260)
x = (rng.uniform(0, 0.6, size=(260, 8, 8, 1)) + y[:, None, None, None] / 25).astype("float32")

model = keras.Sequential(
    [
        keras.Input((8, 8, 1), name="x-input"),
        keras.layers.Flatten(name="input_reshape"),
        keras.layers.Dense(24, activation="relu", name="layer1"),
        keras.layers.Dense(10, name="layer2"),
    ]
)
model.compile(
    keras.optimizers.Adam(0.01),
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
history = model.fit(
    x[:200],
    y[:200],
    batch_size=40,
    epochs=3,
    validation_data=(x[200:], y[200:]),
    callbacks=[
        keras.callbacks.TensorBoard(log_dir, histogram_freq=1, update_freq="batch"),
        Summaries(log_dir + "/own", x[:4]),
    ],
)
evaluated = model.evaluate(x[200:], y[200:])
