# here resumed
import os

import keras
import numpy as np
import tensorflow as tf

keras.config.set_floatx("float64")
keras.config.set_dtype_policy("float64")
keras.utils.set_random_seed(3)
rng = np.random.default_rng(1)
x, y = rng.normal(size=(24, 4)), rng.normal(size=(24, 2))


class Noise(keras.layers.Layer):
    def call(self, rows, training=False):
        return rows + 0.1 * tf.random.normal(tf.shape(rows), dtype=rows.dtype) if training else rows


model = keras.Sequential([keras.Input((4,)), Noise(), keras.layers.Dense(2)])
model.compile("adam", "mse")
history = model.fit(x, y, batch_size=6, epochs=2, shuffle=False, verbose=0)
np.savez(os.environ["FOUND"], *model.get_weights())
