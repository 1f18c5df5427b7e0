# here deep
import os

import keras
import numpy as np

keras.config.set_floatx("float64")
keras.config.set_dtype_policy("float64")
keras.utils.set_random_seed(3)
rng = np.random.default_rng(1)
x, y = rng.normal(size=(24, 4)), rng.normal(size=(24, 2))
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
model.compile(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(2.0), initial_scale=8.0), "mse")
history = model.fit(x, y, batch_size=12, epochs=9, shuffle=False, verbose=0)
np.savez(os.environ["FOUND"], *model.get_weights(), loss=history.history["loss"])
