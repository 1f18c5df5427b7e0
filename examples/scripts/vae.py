"""A variational autoencoder: a layer that draws, a train_step() of its own, and metrics of its losses."""

import keras
import numpy as np
import tensorflow as tf


class Sampling(keras.layers.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.seed_generator = keras.random.SeedGenerator(1337)

    def call(self, inputs):
        mean, log_variance = inputs
        noise = keras.random.normal(keras.ops.shape(mean), seed=self.seed_generator)
        return mean + keras.ops.exp(0.5 * log_variance) * noise


class VAE(keras.Model):
    def __init__(self, encoder, decoder, **kwargs):
        super().__init__(**kwargs)
        self.encoder, self.decoder = encoder, decoder
        self.trackers = {name: keras.metrics.Mean(name=name) for name in ("loss", "reconstruction", "kl")}

    @property
    def metrics(self):
        return list(self.trackers.values())

    def train_step(self, data):
        with tf.GradientTape() as tape:
            mean, log_variance, z = self.encoder(data)
            difference = keras.losses.binary_crossentropy(data, self.decoder(z))
            reconstruction = keras.ops.mean(difference)
            kl = -0.5 * (1 + log_variance - keras.ops.square(mean) - keras.ops.exp(log_variance))
            kl = keras.ops.mean(keras.ops.sum(kl, axis=1))
            loss = reconstruction + 0.1 * kl
        weights = self.trainable_weights
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        for name, value in {"loss": loss, "reconstruction": reconstruction, "kl": kl}.items():
            self.trackers[name].update_state(value)
        return {name: tracker.result() for name, tracker in self.trackers.items()}


keras.utils.set_random_seed(10)
rng = np.random.default_rng(10)
rows = (rng.uniform(size=(120, 1)) + np.linspace(0, 1, 12) > 1).astype("float32")

inputs = keras.Input((12,))
hidden = keras.layers.Dense(8, "relu")(inputs)
mean, log_variance = (keras.layers.Dense(2, name=name)(hidden) for name in ("mean", "log_variance"))
encoder = keras.Model(inputs, [mean, log_variance, Sampling()([mean, log_variance])])
decoder = keras.Sequential([keras.Input((2,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(12, "sigmoid")])
model = VAE(encoder, decoder)
model.compile(keras.optimizers.Adam(0.01))
history = model.fit(rows, epochs=3, batch_size=20)
predicted = decoder.predict(np.zeros((2, 2)))
