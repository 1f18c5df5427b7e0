"""A forecast: windows of a series by timeseries_dataset_from_array, an LSTM, early stopping."""

import keras
import numpy as np

keras.utils.set_random_seed(2)
series = np.sin(np.arange(240) / 9) + np.random.default_rng(2).normal(scale=0.1, size=240)
past = 12
targets = series[past:]


def windows(first, last):
    return keras.utils.timeseries_dataset_from_array(
        series[first:last, None], targets[first:last], sequence_length=past, batch_size=16
    )


inputs = keras.Input((past, 1))
outputs = keras.layers.Dense(1)(keras.layers.LSTM(8)(inputs))
model = keras.Model(inputs, outputs)
model.compile(keras.optimizers.Adam(0.01), "mse")
history = model.fit(
    windows(0, 150),
    validation_data=windows(150, 228),
    epochs=4,
    callbacks=[keras.callbacks.EarlyStopping(patience=2, restore_best_weights=True)],
)
