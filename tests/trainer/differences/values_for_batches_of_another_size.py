# equal here
import os

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

keras.config.set_floatx("float64")
keras.config.set_dtype_policy("float64")
keras.utils.set_random_seed(3)
rng = np.random.default_rng(1)
x, y = rng.normal(size=(24, 4)), rng.normal(size=(24, 2))


class S(keras.Model):
    def __init__(self, *a, **k):
        super().__init__(*a, **k)
        self.factor = 1.0

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return self.factor * ops.mean(ops.square(y - y_pred))


i = keras.Input((4,))
m = S(i, layers.Dense(2)(layers.Dense(3)(i)))
m.compile("sgd")
h = m.fit(tf.data.Dataset.from_tensor_slices((x, y)).batch(8, drop_remainder=True), epochs=1, verbose=0)
m.factor = 3.0
m.layers[1].trainable = False
h = m.fit(x, y, batch_size=8, epochs=1, shuffle=False, verbose=0)
np.savez(os.environ["FOUND"], *m.get_weights(), loss=h.history["loss"])
