"""A plain script, as people write it: its own `fit`, over data that is shuffled and batched, without an end."""

from __future__ import annotations

import sys

import keras
import small  # type: ignore[import-not-found]
import tensorflow as tf

BATCH = 64
ROWS = 6400

keras.utils.set_random_seed(1)
x, y = small.arrays(ROWS, "train")
rows = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(ROWS, seed=1).batch(BATCH)
net = small.model()
net.fit(rows, epochs=sys.maxsize, validation_data=small.arrays(256, "test"), callbacks=small.callbacks(), verbose=0)
