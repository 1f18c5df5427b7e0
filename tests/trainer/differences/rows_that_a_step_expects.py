# resumed
import os

import keras
import numpy as np
import tensorflow as tf
from keras import ops

keras.config.set_floatx("float64")
keras.config.set_dtype_policy("float64")
keras.utils.set_random_seed(3)
rng = np.random.default_rng(1)
x, y = rng.normal(size=(24, 4)), rng.normal(size=(24, 2))


class Mine(keras.Model):
    def __init__(self):
        super().__init__()
        self.layer = keras.layers.Dense(4)
        self.error = keras.metrics.Mean(name="error")

    def call(self, rows):
        return self.layer(rows)

    def train_step(self, rows):
        noise = keras.random.normal(shape=(12, 4), dtype=rows.dtype)
        with tf.GradientTape() as tape:
            error = ops.mean(ops.square(noise - self(0.5 * rows + 0.5 * noise, training=True)))
        gradients = tape.gradient(error, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        self.error.update_state(error)
        return {"error": self.error.result()}


model = Mine()
model.compile("adam")
history = model.fit(x, batch_size=12, epochs=3, shuffle=False, verbose=0)
np.savez(os.environ["FOUND"], *model.get_weights(), error=history.history["error"])
