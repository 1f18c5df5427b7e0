"""A table: several named inputs, Normalization.adapt(), a map() of batches, validation_steps and class weights."""

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(3)
rng = np.random.default_rng(3)
table = {"age": rng.uniform(20, 80, size=(203, 1)), "kind": rng.integers(0, 5, size=(203, 1))}
label = (table["age"][:, 0] / 80 + table["kind"][:, 0] / 5 > 1).astype("float32")


def with_logarithm(features, y):
    return {**features, "log": tf.math.log(features["age"])}, y


rows = tf.data.Dataset.from_tensor_slices((table, label))
train = rows.take(160).shuffle(160).batch(32).map(with_logarithm, num_parallel_calls=2).prefetch(1)
held_out = rows.skip(160).repeat().batch(20).map(with_logarithm)

age = keras.Input((1,), name="age")
kind = keras.Input((1,), name="kind", dtype="int64")
log = keras.Input((1,), name="log")
normalization = keras.layers.Normalization()
normalization.adapt(table["age"])
hidden = keras.layers.Concatenate()(
    [normalization(age), keras.layers.Flatten()(keras.layers.Embedding(5, 3)(kind)), log]
)
model = keras.Model(
    {"age": age, "kind": kind, "log": log},
    keras.layers.Dense(1, "sigmoid")(keras.layers.Dense(8, "relu")(hidden)),
)
model.compile(keras.optimizers.AdamW(0.01), "binary_crossentropy", metrics=["accuracy", keras.metrics.AUC()])
history = model.fit(train, epochs=3, validation_data=held_out, validation_steps=2, class_weight={0: 1.0, 1: 2.0})
evaluated = model.evaluate(held_out, steps=2)
predicted = model.predict(held_out, steps=2)
