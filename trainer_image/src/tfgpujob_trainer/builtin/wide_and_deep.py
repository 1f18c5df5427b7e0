"""Wide and deep: which visitor clicks what, from categories in embedding tables, on made-up data.

The wide part is a linear model that learns single combinations of categories by heart; the deep part is a network over
embeddings, which generalises to combinations that were never seen. Each feature has a table of its own, so that
parameter servers share the tables.
"""

import keras
import numpy as np


def model(visitors=300, items=100, countries=10, *, width=8, units=32, lr=0.5):
    inputs = {
        "visitor": keras.Input((), dtype="int64", name="visitor"),
        "item": keras.Input((), dtype="int64", name="item"),
        "country_and_item": keras.Input((), dtype="int64", name="country_and_item"),
        "numbers": keras.Input((2,), name="numbers"),
    }
    wide = keras.layers.Embedding(countries * items, 1, "zeros", name="wide")(inputs["country_and_item"])
    tables = {"visitor": visitors, "item": items}
    embedded = [keras.layers.Embedding(size, width, name=f"{name}s")(inputs[name]) for name, size in tables.items()]
    deep = keras.layers.Concatenate()([*embedded, keras.layers.Multiply()(embedded), inputs["numbers"]])
    deep = keras.layers.Dense(units, "relu")(deep)
    net = keras.Model(inputs, keras.layers.Add()([wide, keras.layers.Dense(1)(deep)]))
    net.compile(
        keras.optimizers.Adagrad(lr),
        keras.losses.BinaryCrossentropy(from_logits=True),
        metrics=[keras.metrics.BinaryAccuracy(threshold=0.0, name="accuracy")],
    )
    return net


def data(split, rows=40000, visitors=300, items=100, countries=10):  # "train" | "validation" | "test" | "predict"
    world = np.random.default_rng(0)
    taste, kind = world.normal(size=(visitors, 4)), world.normal(size=(items, 4))
    home, local = world.integers(countries, size=visitors), world.normal(size=countries * items)

    seed = ("train", "validation", "test", "predict").index(split)
    draw = np.random.default_rng([1, seed])
    rows = rows if split == "train" else rows // 8
    visitor, item = draw.integers(visitors, size=rows), draw.integers(items, size=rows)
    country_and_item = home[visitor] * items + item
    numbers = draw.normal(size=(rows, 2))
    interest = 2 * (taste[visitor] * kind[item]).sum(1) + 1.5 * local[country_and_item] + numbers[:, 0]
    clicked = interest > draw.logistic(size=rows)
    x = {"visitor": visitor, "item": item, "country_and_item": country_and_item, "numbers": numbers}
    return x, clicked.astype("float32")[:, None]
