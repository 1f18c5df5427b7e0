# here
import os

import keras
import numpy as np
from keras import ops

keras.config.set_floatx("float64")
keras.config.set_dtype_policy("float64")
keras.utils.set_random_seed(3)
rng = np.random.default_rng(1)
x, y = rng.normal(size=(50, 4)), rng.normal(size=(50, 1))
y[::4] = np.nan


def loss(y_true, y_pred):
    known = ops.logical_not(ops.isnan(y_true))
    error = ops.where(known, ops.square(ops.where(known, y_true, 0.0) - y_pred), 0.0)
    return ops.sum(error) / ops.maximum(ops.sum(ops.cast(known, "float64")), 1.0)


model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", loss)
history = model.fit(x, y, batch_size=12, epochs=2, shuffle=False, verbose=0)
np.savez(os.environ["FOUND"], *model.get_weights(), loss=history.history["loss"])
