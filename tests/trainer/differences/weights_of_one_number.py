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
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
model.compile(keras.optimizers.SGD(0.05), lambda y_true, y_pred: ops.mean(ops.square(y_true - y_pred)))
history = model.fit(x, y, batch_size=6, sample_weight=np.linspace(0, 2, 25), epochs=2, shuffle=False, verbose=0)
np.savez(os.environ["FOUND"], *model.get_weights(), loss=history.history["loss"])
