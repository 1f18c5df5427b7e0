"""ResNet-50 on made-up pictures, to see how fast GPUs are: 25.6 million weights, nothing to download.

The pictures are a few hundred that are read again and again, so that the data is never what is waited for.
"""

import keras
import numpy as np


def model(size=224, classes=1000, lr=0.1, momentum=0.9):
    net = keras.applications.ResNet50(
        weights=None, input_shape=(size, size, 3), classes=classes, classifier_activation=None
    )
    net.compile(
        keras.optimizers.SGD(lr, momentum=momentum),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return net


def data(split, rows=2048, size=224, classes=1000):
    rng = np.random.default_rng(1 if split == "train" else 2)
    rows = rows if split == "train" else max(1, rows // 8)
    return rng.integers(0, 256, (rows, size, size, 3), dtype="uint8"), rng.integers(0, classes, rows)
