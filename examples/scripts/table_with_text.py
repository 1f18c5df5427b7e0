"""A table with text in it: StringLookup, Hashing and Normalization in the model, from a dataset of named columns."""

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(8)
rng = np.random.default_rng(8)
kinds, cities = ["cat", "dog", "parrot"], ["Aarhus", "Bergen", "Cádiz", "Delft", "Essen"]
table = {
    "kind": rng.choice(kinds, size=190).astype(object),
    "city": rng.choice(cities, size=190).astype(object),
    "age": rng.uniform(0, 15, size=190),
}
adopted = ((table["kind"] == "dog") | (table["age"] < 4)).astype("int32")
rows = tf.data.Dataset.from_tensor_slices((table, adopted))
train, held_out = rows.take(150).shuffle(150).batch(25), rows.skip(150).batch(25)

kind, city = (keras.Input((1,), name=name, dtype="string") for name in ("kind", "city"))
age = keras.Input((1,), name="age")
lookup = keras.layers.StringLookup(output_mode="one_hot")
lookup.adapt(table["kind"])
buckets = keras.layers.Hashing(num_bins=7)
normalization = keras.layers.Normalization(axis=None)
normalization.adapt(train.unbatch().map(lambda features, _: features["age"]).batch(50))
features = [
    lookup(kind),
    keras.layers.Flatten()(keras.layers.Embedding(7, 3)(buckets(city))),
    normalization(age),
]
hidden = keras.layers.Dense(8, "relu")(keras.layers.Concatenate()(features))
model = keras.Model({"kind": kind, "city": city, "age": age}, keras.layers.Dense(1, "sigmoid")(hidden))
model.compile(keras.optimizers.AdamW(0.01), "binary_crossentropy", metrics=["accuracy"])
history = model.fit(train, validation_data=held_out, epochs=3, class_weight={0: 1.0, 1: 2.0})
evaluated = model.evaluate(held_out)
predicted = model.predict({name: column[:5] for name, column in table.items()})
