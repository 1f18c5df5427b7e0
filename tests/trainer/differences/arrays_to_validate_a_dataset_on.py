# here
import os

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

keras.config.set_floatx("float64")
keras.config.set_dtype_policy("float64")
keras.utils.set_random_seed(3)
rng = np.random.default_rng(1)
x, y = rng.normal(size=(25, 4)), rng.normal(size=(25, 2))
model = keras.Sequential([keras.Input((4,)), layers.Dense(2)])
model.compile("sgd", lambda y_true, y_pred: ops.sum(ops.square(y_true - y_pred)) / 25)
rows = tf.data.Dataset.from_tensor_slices((x, y)).batch(6)
history = model.fit(rows, epochs=2, validation_data=(x, y), verbose=0)
found = {f"weight {i}": weight for i, weight in enumerate(model.get_weights())}
np.savez(os.environ["FOUND"], **found, losses=history.history["loss"] + history.history["val_loss"])
