# here
import os

import keras
import numpy as np
import tensorflow as tf
from keras import ops

keras.config.set_floatx("float64")
keras.config.set_dtype_policy("float64")
keras.utils.set_random_seed(3)
rng = np.random.default_rng(1)
x, y = rng.normal(size=(25, 4)), rng.normal(size=(25, 2))


class Mine(keras.Model):
    def __init__(self):
        super().__init__()
        self.layer = keras.layers.Dense(2)

    def call(self, rows):
        return self.layer(rows)

    def train_step(self, data):
        rows, wanted = data
        with tf.GradientTape() as tape:
            loss = ops.mean(ops.square(self(rows, training=True) - wanted))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"loss": loss}


model = Mine()
model.compile("adam")
history = model.fit(x, y, batch_size=6, epochs=2, shuffle=False, verbose=0)
np.savez(os.environ["FOUND"], *model.get_weights(), loss=history.history["loss"])
