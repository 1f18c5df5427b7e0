# here
import os

import keras
import numpy as np
from keras import ops

keras.config.set_floatx("float64")
keras.config.set_dtype_policy("float64")
keras.utils.set_random_seed(3)
rng = np.random.default_rng(1)
x, y = rng.normal(size=(25, 4)), rng.normal(size=(25, 2))


class Total(keras.metrics.Metric):
    def __init__(self):
        super().__init__(name="total")
        self.total = self.add_weight(name="total", initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.total.assign_add(ops.sum(ops.abs(y_true - y_pred)))

    def result(self):
        return self.total


model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
model.compile("adam", "mse", metrics=[Total()])
history = model.fit(x, y, batch_size=6, validation_data=(x[:9], y[:9]), epochs=2, shuffle=False, verbose=0)
np.savez(os.environ["FOUND"], *model.get_weights(), **history.history)
