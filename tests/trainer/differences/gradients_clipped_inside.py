# here
import os

import keras
import numpy as np
import tensorflow as tf

keras.config.set_floatx("float64")
keras.config.set_dtype_policy("float64")
keras.utils.set_random_seed(3)
rng = np.random.default_rng(1)
x, y = rng.normal(size=(25, 4)), rng.normal(size=(25, 2))


@tf.custom_gradient
def clipped(z):
    return z, lambda upstream: tf.clip_by_value(upstream, -0.01, 0.01)


inputs = keras.Input((4,))
hidden = keras.layers.Lambda(clipped)(keras.layers.Dense(3)(inputs))
model = keras.Model(inputs, [keras.layers.Dense(2)(hidden), keras.layers.Dense(2)(hidden)])
model.compile("adam", ["mse", "mae"])
history = model.fit(x, [y, y], batch_size=6, epochs=2, shuffle=False, verbose=0)
np.savez(os.environ["FOUND"], *model.get_weights(), **history.history)
