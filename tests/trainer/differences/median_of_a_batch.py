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


def median(y_true, y_pred):
    return ops.median(ops.abs(y_true - y_pred))


model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(6, "tanh"), keras.layers.Dense(1)])
model.compile("adam", "mse", metrics=[median])
history = model.fit(x, y, batch_size=12, epochs=2, shuffle=False, verbose=0)
np.savez(os.environ["FOUND"], *model.get_weights(), median=history.history["median"])
