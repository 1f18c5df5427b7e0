"""A recommender: embeddings in a subclassed model, sample weights, sparse gradients, fine-tuned in a second fit()."""

import keras
import numpy as np


class Recommender(keras.Model):
    def __init__(self, users, films, width, **kwargs):
        super().__init__(**kwargs)
        self.users, self.films = keras.layers.Embedding(users, width), keras.layers.Embedding(films, width)
        self.user_bias, self.film_bias = keras.layers.Embedding(users, 1), keras.layers.Embedding(films, 1)

    def call(self, inputs):
        user, film = inputs[:, 0], inputs[:, 1]
        match = keras.ops.sum(self.users(user) * self.films(film), axis=1, keepdims=True)
        return keras.ops.sigmoid(match + self.user_bias(user) + self.film_bias(film))


keras.utils.set_random_seed(14)
rng = np.random.default_rng(14)
seen = np.stack([rng.integers(0, 30, size=220), rng.integers(0, 12, size=220)], axis=1)
rating = (np.sin(seen[:, 0]) * np.cos(seen[:, 1]) + 1) / 2
age_of_rating = rng.uniform(0, 5, size=220)

model = Recommender(30, 12, 4)
model.compile(keras.optimizers.Adam(0.02), "binary_crossentropy", metrics=["mae"])
weight = np.exp(-age_of_rating / 5)
model.fit(seen, rating, sample_weight=weight, batch_size=32, epochs=3, validation_split=0.1)

model.films.trainable = model.film_bias.trainable = False
model.compile(keras.optimizers.Adam(0.002), "binary_crossentropy", metrics=["mae"])
history = model.fit(seen, rating, sample_weight=weight, batch_size=32, epochs=2, validation_split=0.1)
evaluated = model.evaluate(seen, rating)
films = np.arange(12)
predicted = model.predict(np.stack([np.full(12, 7), films], axis=1))
print("user 7 should see film", int(films[np.argmax(predicted)]))
