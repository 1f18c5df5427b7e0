"""Segmentation: a small U-Net with synchronized BatchNormalization, a label for each pixel, mean IoU, a checkpoint."""

import keras
import numpy as np
import tensorflow as tf


def block(x, filters):
    x = keras.layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
    x = keras.layers.BatchNormalization(synchronized=True, momentum=0.5)(x)
    return keras.layers.Activation("relu")(x)


def unet(size, classes):
    inputs = keras.Input((size, size, 1))
    wide = block(inputs, 4)
    deep = block(keras.layers.MaxPooling2D()(wide), 8)
    up = keras.layers.Concatenate()([keras.layers.UpSampling2D()(deep), wide])
    return keras.Model(inputs, keras.layers.Conv2D(classes, 1)(block(up, 4)))


keras.utils.set_random_seed(15)
rng = np.random.default_rng(15)
masks = np.zeros((60, 8, 8), "int32")
for mask in masks:
    top, left = rng.integers(0, 5, size=2)
    mask[top : top + 4, left : left + 3] = rng.integers(1, 3)
images = (masks + rng.normal(scale=0.3, size=masks.shape))[..., None].astype("float32")

pictures = tf.data.Dataset.from_tensor_slices((images, masks))
train = pictures.take(48).cache().shuffle(48).batch(12).prefetch(tf.data.AUTOTUNE)
held_out = pictures.skip(48).batch(12)

model = unet(8, 3)
model.compile(
    keras.optimizers.Adam(0.01),
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=[keras.metrics.MeanIoU(3, sparse_y_pred=False)],
)
history = model.fit(
    train,
    epochs=4,
    validation_data=held_out,
    callbacks=[keras.callbacks.ModelCheckpoint("best.keras", save_best_only=True)],
)
evaluated = keras.saving.load_model("best.keras").evaluate(held_out)
predicted = model.predict(held_out)
