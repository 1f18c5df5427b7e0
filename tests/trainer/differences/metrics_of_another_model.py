# here deep
import os

import keras
import numpy as np

keras.config.set_floatx("float64")
keras.config.set_dtype_policy("float64")
keras.utils.set_random_seed(3)
rng = np.random.default_rng(1)
x, y = rng.normal(size=(24, 4)), rng.normal(size=(24, 1))
metrics = [keras.metrics.MeanAbsoluteError(name="mae")]


def made():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("adam", "mse", metrics=metrics)
    return model


first, second = made(), made()
evaluated = first.evaluate(x, y, verbose=0)
variables = len(first.optimizer.variables)
history = second.fit(x, y, batch_size=6, epochs=2, shuffle=False, verbose=0)
np.savez(os.environ["FOUND"], *second.get_weights(), evaluated, variables, mae=history.history["mae"])
