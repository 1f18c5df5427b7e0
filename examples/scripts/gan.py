"""A GAN: a train_step() of its own with two optimizers, random latent vectors, and a callback that draws samples."""

import keras
import numpy as np
import tensorflow as tf

LATENT = 4


class GAN(keras.Model):
    def __init__(self, discriminator, generator):
        super().__init__()
        self.discriminator, self.generator = discriminator, generator
        self.seed_generator = keras.random.SeedGenerator(1337)
        self.d_loss_metric = keras.metrics.Mean(name="d_loss")
        self.g_loss_metric = keras.metrics.Mean(name="g_loss")

    def compile(self, d_optimizer, g_optimizer, loss_fn):
        super().compile()
        self.d_optimizer, self.g_optimizer, self.loss_fn = d_optimizer, g_optimizer, loss_fn

    @property
    def metrics(self):
        return [self.d_loss_metric, self.g_loss_metric]

    def train_step(self, real):
        rows = keras.ops.shape(real)[0]
        latent = keras.random.normal((rows, LATENT), seed=self.seed_generator)
        both = keras.ops.concatenate([self.generator(latent), real], axis=0)
        labels = keras.ops.concatenate([keras.ops.ones((rows, 1)), keras.ops.zeros((rows, 1))], axis=0)
        with tf.GradientTape() as tape:
            d_loss = self.loss_fn(labels, self.discriminator(both))
        weights = self.discriminator.trainable_weights
        self.d_optimizer.apply_gradients(zip(tape.gradient(d_loss, weights), weights, strict=True))

        latent = keras.random.normal((rows, LATENT), seed=self.seed_generator)
        with tf.GradientTape() as tape:
            g_loss = self.loss_fn(keras.ops.zeros((rows, 1)), self.discriminator(self.generator(latent)))
        weights = self.generator.trainable_weights
        self.g_optimizer.apply_gradients(zip(tape.gradient(g_loss, weights), weights, strict=True))

        self.d_loss_metric.update_state(d_loss)
        self.g_loss_metric.update_state(g_loss)
        return {"d_loss": self.d_loss_metric.result(), "g_loss": self.g_loss_metric.result()}


class Samples(keras.callbacks.Callback):
    def __init__(self, latent):
        super().__init__()
        self.latent, self.means = latent, []

    def on_epoch_end(self, epoch, logs=None):
        self.means.append(float(np.mean(self.model.generator(self.latent))))


keras.utils.set_random_seed(9)
rng = np.random.default_rng(9)
pictures = rng.uniform(size=(96, 6, 6, 1)) * (np.arange(6) < 3)[None, None, :, None]

discriminator = keras.Sequential(
    [
        keras.Input((6, 6, 1)),
        keras.layers.Conv2D(4, 3, strides=2, padding="same"),
        keras.layers.LeakyReLU(negative_slope=0.2),
        keras.layers.Flatten(),
        keras.layers.Dense(1),
    ]
)
generator = keras.Sequential(
    [
        keras.Input((LATENT,)),
        keras.layers.Dense(3 * 3 * 4),
        keras.layers.Reshape((3, 3, 4)),
        keras.layers.Conv2DTranspose(1, 4, strides=2, padding="same", activation="sigmoid"),
    ]
)
model = GAN(discriminator, generator)
model.compile(
    keras.optimizers.Adam(0.003), keras.optimizers.Adam(0.003), keras.losses.BinaryCrossentropy(from_logits=True)
)
latent = rng.normal(size=(8, LATENT))
samples = Samples(latent)
dataset = tf.data.Dataset.from_tensor_slices(pictures).shuffle(96).batch(16)
history = model.fit(dataset, epochs=3, callbacks=[samples])
evaluated = samples.means
predicted = generator.predict(latent)
