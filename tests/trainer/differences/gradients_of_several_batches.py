# here
import os

import keras
import numpy as np

keras.config.set_floatx("float64")
keras.config.set_dtype_policy("float64")
keras.utils.set_random_seed(3)
rng = np.random.default_rng(1)
x, y = rng.integers(0, 9, size=(50, 4)), rng.normal(size=(50, 1))
layers = [keras.layers.Embedding(9, 3), keras.layers.Flatten(), keras.layers.Dense(1, kernel_regularizer="l2")]
model = keras.Sequential([keras.Input((4,), dtype="int32"), *layers])
rate = keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)
model.compile(keras.optimizers.SGD(rate, 0.9, weight_decay=0.1, clipvalue=0.05, gradient_accumulation_steps=3), "mse")
history = model.fit(x, y, batch_size=7, epochs=2, shuffle=False, verbose=0)
counts = [model.optimizer.iterations, model.optimizer.gradient_accumulation_steps]
np.savez(os.environ["FOUND"], *model.get_weights(), *counts, loss=history.history["loss"])
