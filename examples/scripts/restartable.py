"""A restartable script, as Keras' guide has it: a checkpoint each epoch, of which the newest is loaded at the start."""

from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

checkpoint_dir = Path("ckpt")
checkpoint_dir.mkdir(exist_ok=True)


def get_compiled_model():
    inputs = keras.Input(shape=(64,))
    x = keras.layers.Dense(32, activation="relu")(inputs)
    x = keras.layers.Dense(32, activation="relu")(x)
    outputs = keras.layers.Dense(10)(x)
    model = keras.Model(inputs, outputs)
    model.compile(
        optimizer=keras.optimizers.Adam(),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[keras.metrics.SparseCategoricalAccuracy()],
    )
    return model


def get_dataset():
    batch_size = 32
    rng = np.random.default_rng(3)
    y = rng.integers(0, 10, size=340)
    x = rng.normal(size=(340, 64)).astype("float32") + np.eye(10, 64, dtype="float32")[y]
    parts = (slice(0, 200), slice(200, 260), slice(260, 340))
    return (tf.data.Dataset.from_tensor_slices((x[part], y[part])).batch(batch_size) for part in parts)


def make_or_restore_model():
    checkpoints = sorted(checkpoint_dir.glob("*.keras"))
    if checkpoints:
        print("Restoring from", checkpoints[-1])
        return keras.models.load_model(checkpoints[-1])
    print("Creating a new model")
    return get_compiled_model()


def run_training(epochs=1):
    strategy = tf.distribute.MirroredStrategy()
    with strategy.scope():
        model = make_or_restore_model()
    callbacks = [keras.callbacks.ModelCheckpoint(filepath="ckpt/ckpt-{epoch}.keras", save_freq="epoch")]
    train_dataset, val_dataset, test_dataset = get_dataset()
    history = model.fit(train_dataset, epochs=epochs, callbacks=callbacks, validation_data=val_dataset, verbose=2)
    return model, history, model.evaluate(test_dataset)


run_training(epochs=2)
model, history, evaluated = run_training(epochs=1)
