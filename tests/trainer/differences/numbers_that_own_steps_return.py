# here equal
import os

import keras
import numpy as np
import tensorflow as tf
from keras import ops

keras.config.set_floatx("float64")
keras.config.set_dtype_policy("float64")
keras.utils.set_random_seed(3)
rng = np.random.default_rng(1)
x, y = rng.normal(size=(29, 4)), rng.integers(0, 2, size=(29, 3)).astype("float64")


class Model(keras.Model):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(y=y, y_pred=y_pred)
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        of_each = ops.mean(ops.square(y - y_pred), axis=0)
        return {"of_each": of_each, **self.compute_metrics(x, y, y_pred), "last": loss, "rows": ops.shape(x)[0]}


inputs = keras.Input((4,))
model = Model(inputs, keras.layers.Dense(3, "sigmoid")(inputs))
metrics = [keras.metrics.F1Score(average=None, threshold=0.5), "mae"]
model.compile(keras.optimizers.SGD(0.01), keras.losses.MeanSquaredError(reduction="sum"), metrics=metrics)
history = model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0)
evaluated = model.evaluate(x, y, batch_size=8, verbose=0, return_dict=True)
found = {f"evaluated {name}": value for name, value in evaluated.items()}
np.savez(os.environ["FOUND"], *model.get_weights(), **history.history, **found)
