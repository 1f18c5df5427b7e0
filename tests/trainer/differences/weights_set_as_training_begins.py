# equal resumed
import os

import keras
import numpy as np
from keras import layers

keras.config.set_floatx("float64")
keras.config.set_dtype_policy("float64")
keras.utils.set_random_seed(3)
rng = np.random.default_rng(1)
x, y = rng.normal(size=(24, 4)), rng.normal(size=(24, 2))


class C(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.model.set_weights([0.1 + 0 * w for w in self.model.get_weights()])


m = keras.Sequential([keras.Input((4,)), layers.Dense(5, "tanh"), layers.Dense(2)])
m.compile(keras.optimizers.SGD(0.1, momentum=0.5), "mse")
h = m.fit(x, y, batch_size=8, epochs=3, shuffle=False, verbose=0, callbacks=[C()])
np.savez(os.environ["FOUND"], *m.get_weights(), loss=h.history["loss"])
