"""A PyDataset with two workers, whose order is its own, drawn in on_epoch_end(), and which a second fit() reads on."""

import keras
import numpy as np


class Spirals(keras.utils.PyDataset):
    def __init__(self, size, batch_size, **kwargs):
        super().__init__(**kwargs)
        self.rng = np.random.default_rng(4)
        self.order, self.batch_size = np.arange(size), batch_size

    def __len__(self):
        return len(self.order) // self.batch_size

    def __getitem__(self, index):
        rows = self.order[index * self.batch_size : (index + 1) * self.batch_size]
        turn = rows / len(self.order) * 6
        side = rows % 2
        points = np.stack([np.sin(turn), np.cos(turn)], axis=1) * turn[:, None] * (1 - 2 * side[:, None])
        return points, side

    def on_epoch_end(self):
        self.rng.shuffle(self.order)


keras.utils.set_random_seed(4)
model = keras.Sequential([keras.layers.Dense(16, "tanh"), keras.layers.Dense(1, "sigmoid")])
model.compile(keras.optimizers.Adam(0.02), "binary_crossentropy", metrics=["accuracy"])
spirals = Spirals(120, 20, workers=2)
model.fit(spirals, validation_data=Spirals(60, 30), epochs=3)
history = model.fit(spirals, validation_data=Spirals(60, 30), epochs=5, initial_epoch=3)
evaluated = model.evaluate(Spirals(60, 30))
predicted = model.predict(Spirals(40, 20))
