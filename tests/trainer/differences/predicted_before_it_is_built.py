# here
import os

import keras
import numpy as np

keras.config.set_floatx("float64")
keras.config.set_dtype_policy("float64")
keras.utils.set_random_seed(3)
rng = np.random.default_rng(1)
x, y = rng.normal(size=(24, 4)), rng.normal(size=(24, 1))
model = keras.Sequential([keras.layers.Dense(3), keras.layers.BatchNormalization(synchronized=True)])
predicted = model.predict(x[:5], verbose=0)
error = keras.metrics.MeanAbsoluteError()
model.compile("adam", "mse", metrics=[error])
model.fit(x, y, batch_size=6, epochs=2, shuffle=False, verbose=0)
np.savez(os.environ["FOUND"], *model.get_weights(), predicted, error.result())
