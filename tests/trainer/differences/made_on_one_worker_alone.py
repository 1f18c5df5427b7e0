# workers equal
import json
import os

import keras
import numpy as np

keras.config.set_floatx("float64")
keras.config.set_dtype_policy("float64")
keras.utils.set_random_seed(3)
rng = np.random.default_rng(1)
x, y = rng.normal(size=(24, 4)), rng.normal(size=(24, 1))
worker = json.loads(os.environ.get("TF_CONFIG", "{}")).get("task", {}).get("index", 0)


def own_numbers(shape, dtype=None):
    return np.random.default_rng(worker).normal(size=shape)


model = keras.Sequential([keras.layers.Dense(size, kernel_initializer=own_numbers) for size in (3, 1)])
evaluated = keras.Sequential([keras.Input([4]), keras.layers.Dense(1, kernel_initializer=own_numbers)])
evaluated.compile(loss="mse")
loss = evaluated.evaluate(x, y, verbose=0)
if worker == 0:
    keras.Sequential([keras.Input([4]), keras.layers.Dense(2)]).predict(x, verbose=0)
    model.predict(x, verbose=0)
model.compile("adam", lambda labels, outputs: keras.ops.sum(keras.ops.square(labels - outputs)))
model.fit(x, y, batch_size=6, epochs=2, shuffle=False, verbose=0)
np.savez(os.environ["FOUND"], *model.get_weights(), loss)
