# here deep
import os

import keras
import numpy as np

keras.config.set_floatx("float64")
keras.config.set_dtype_policy("float64")
keras.utils.set_random_seed(3)
rng = np.random.default_rng(1)
x, y = rng.normal(size=(50, 4)), rng.normal(size=(50, 1))


class Stops(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        self.model.stop_training = (self.epoch, batch) == (1, 2)

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch


model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(6, "tanh"), keras.layers.Dense(1)])
model.compile("adam", "mse")
how = {"batch_size": 12, "shuffle": False, "verbose": 0, "validation_data": (x, y)}
first = model.fit(x, y, epochs=5, callbacks=[Stops()], **how)
second = model.fit(x, y, epochs=1, **how)
losses = first.history["loss"] + second.history["loss"] + first.history["val_loss"]
np.savez(os.environ["FOUND"], *model.get_weights(), losses=losses, epochs=first.epoch)
