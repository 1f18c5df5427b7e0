"""Pairs: a siamese network, a contrastive loss that is a function, two inputs in a list, validation_data."""

import keras
import numpy as np


def pairs(x, labels, rng):
    other = rng.permutation(len(x))
    alike = rng.permutation(len(x))[: len(x) // 2]
    for index in alike:
        other[index] = rng.choice(np.flatnonzero(labels == labels[index]))
    return [x, x[other]], (labels != labels[other]).astype("float32")


def distance(vectors):
    squares = keras.ops.sum(keras.ops.square(vectors[0] - vectors[1]), axis=1, keepdims=True)
    return keras.ops.sqrt(keras.ops.maximum(squares, keras.config.epsilon()))


def contrastive_loss(margin=1):
    def loss(y_true, y_pred):
        near = (1 - y_true) * keras.ops.square(y_pred)
        far = y_true * keras.ops.square(keras.ops.maximum(margin - y_pred, 0))
        return keras.ops.mean(near + far)

    return loss


keras.utils.set_random_seed(12)
rng = np.random.default_rng(12)
labels = rng.integers(0, 4, size=130)
x = rng.normal(size=(130, 6)) + np.eye(4, 6)[labels] * 3
train, held_out = pairs(x[:100], labels[:100], rng), pairs(x[100:], labels[100:], rng)

embedding = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(3)])
left, right = keras.Input((6,)), keras.Input((6,))
outputs = keras.layers.Lambda(distance, output_shape=(1,))([embedding(left), embedding(right)])
model = keras.Model([left, right], outputs)
model.compile(keras.optimizers.RMSprop(0.01), contrastive_loss(margin=1), metrics=[keras.metrics.BinaryAccuracy()])
history = model.fit(*train, validation_data=held_out, epochs=3, batch_size=16)
evaluated = model.evaluate(*held_out)
predicted = model.predict(held_out[0])
