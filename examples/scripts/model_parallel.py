"""A language model, divided over the GPUs of one machine: `tfgpu run model_parallel.py --local --gpus 4`.

`-- --width 2048 --blocks 18` has a billion weights; the default is one that a laptop trains in seconds.
"""

import argparse

import keras
import numpy as np
from keras import layers
from keras.distribution import DeviceMesh, LayoutMap, ModelParallel, list_devices, set_distribution

parser = argparse.ArgumentParser()
parser.add_argument("--width", type=int, default=32)
parser.add_argument("--blocks", type=int, default=2)
parser.add_argument("--epochs", type=int, default=3)
options = parser.parse_args()
WORDS, LENGTH, HEADS = 64, 16, 4

keras.utils.set_random_seed(1)
# Two devices share each weight; what is more of them shares the rows of a batch.
devices = list_devices()
mesh = DeviceMesh((len(devices) // 2, 2), ("batch", "model"), devices)
layout = LayoutMap(mesh)
layout[".*words/embeddings"] = ("model", None)
layout[".*attention/(query|key|value)/kernel"] = (None, "model", None)
layout[".*attention/(query|key|value)/bias"] = ("model", None)
layout[".*attention/attention_output/kernel"] = ("model", None, None)
layout[".*up/kernel"] = (None, "model")
layout[".*up/bias"] = ("model",)
layout[".*down/kernel"] = ("model", None)
layout[".*head/kernel"] = (None, "model")
layout[".*head/bias"] = ("model",)
set_distribution(ModelParallel(layout_map=layout, batch_dim_name="batch"))

inputs = keras.Input((LENGTH,), dtype="int32")
x = layers.Embedding(WORDS, options.width, name="words")(inputs)
for i in range(options.blocks):
    y = layers.LayerNormalization()(x)
    attend = layers.MultiHeadAttention(HEADS, options.width // HEADS, dropout=0.1, name=f"block{i}_attention")
    x = x + attend(y, y, use_causal_mask=True)
    y = layers.LayerNormalization()(x)
    y = layers.Dense(4 * options.width, "gelu", name=f"block{i}_up")(y)
    x = x + layers.Dropout(0.1)(layers.Dense(options.width, name=f"block{i}_down")(y))
model = keras.Model(inputs, layers.Dense(WORDS, name="head")(layers.LayerNormalization()(x)))
model.compile(
    keras.optimizers.AdamW(0.01, global_clipnorm=1.0),
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)

# Each word follows from the one before it.
random = np.random.default_rng(1)
follows = random.permutation(WORDS)
text = [random.integers(0, WORDS, 512)]
for _ in range(LENGTH):
    text.append(follows[text[-1]])
rows = np.stack(text, axis=1)
history = model.fit(
    rows[:, :-1], rows[:, 1:], batch_size=64, epochs=options.epochs, shuffle=False, validation_split=0.125
)
evaluated = model.evaluate(rows[:64, :-1], rows[:64, 1:], return_dict=True)
print("accuracy", round(evaluated["accuracy"], 3))
model.save("language_model.keras")
