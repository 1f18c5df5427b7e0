# here equal
import os

import keras
import numpy as np
import tensorflow as tf

keras.config.set_floatx("float64")
keras.config.set_dtype_policy("float64")
keras.utils.set_random_seed(3)
rng = np.random.default_rng(1)
x, y = rng.normal(size=(24, 4)), rng.normal(size=(24, 1))
model = keras.Sequential([keras.Input([4]), keras.layers.Dense(1)])
optimizer = keras.optimizers.SGD(0.05, weight_decay=0.1)
model.compile(optimizer, "mse")
mean = keras.metrics.Mean()


def step():
    with tf.GradientTape() as tape:
        loss = keras.ops.mean(keras.ops.square(model(x, training=True) - y))
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    return loss


mean.update_state(step())
model.fit(x, y, batch_size=6, epochs=1, shuffle=False, verbose=0)
mean.update_state(step())
np.savez(os.environ["FOUND"], *model.get_weights(), float(mean.result()))
