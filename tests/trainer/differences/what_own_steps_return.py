# here deep
import os

import keras
import numpy as np
import tensorflow as tf
from keras import ops

keras.config.set_floatx("float64")
keras.config.set_dtype_policy("float64")
keras.utils.set_random_seed(3)
x = np.random.default_rng(1).normal(size=(25, 4))


class Model(keras.Model):
    def __init__(self):
        super().__init__()
        self.inner = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4)])
        self.mean = keras.metrics.Mean(name="mean")

    @property
    def metrics(self):
        return [self.mean]

    def call(self, x):
        return self.inner(x)

    @tf.function
    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = ops.mean(ops.square(self(data) - data))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        self.mean.update_state(loss)
        return {"error": loss, "loss": self.mean.result()}

    def test_step(self, data):
        self.mean.update_state(ops.mean(ops.square(self(data) - data)))
        return {"mean": self.mean.result()}


model = Model()
model.compile(keras.optimizers.SGD(0.1))
history = model.fit(
    x, batch_size=7, epochs=2, shuffle=False, verbose=0, validation_data=(x[:11],), validation_batch_size=5
)
np.savez(os.environ["FOUND"], *model.get_weights(), **history.history)
