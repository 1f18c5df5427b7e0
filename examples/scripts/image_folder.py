"""Images from a folder: image_dataset_from_directory, then cache(), shuffle() and prefetch()."""

import pathlib
import tempfile

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(1)
folder = pathlib.Path(tempfile.mkdtemp())
rng = np.random.default_rng(1)
for label, shade in (("dark", 60), ("light", 160)):
    (folder / label).mkdir()
    for number in range(16):
        pixels = (rng.integers(0, 90, size=(12, 12, 3)) + shade).astype("uint8")
        tf.io.write_file(str(folder / label / f"{number}.png"), tf.io.encode_png(pixels))

train, validation = keras.utils.image_dataset_from_directory(
    folder, validation_split=0.25, subset="both", seed=2, image_size=(8, 8), batch_size=5
)
print(train.class_names)
train = train.cache().shuffle(100).prefetch(tf.data.AUTOTUNE)
validation = validation.cache().prefetch(tf.data.AUTOTUNE)

model = keras.Sequential(
    [
        keras.layers.Rescaling(1 / 255),
        keras.layers.Conv2D(4, 3, activation="relu"),
        keras.layers.GlobalMaxPooling2D(),
        keras.layers.Dense(2),
    ]
)
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
history = model.fit(train, validation_data=validation, epochs=2)
