"""All GPUs of a machine, as TensorFlow's guide has it: MirroredStrategy, a decaying learning rate, checkpoints."""

import numpy as np
import tensorflow as tf

strategy = tf.distribute.MirroredStrategy()
print("Number of devices:", strategy.num_replicas_in_sync)

BUFFER_SIZE = 240
BATCH_SIZE = 48
EPOCHS = 4


def pictures(count, seed):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 10, size=count)
    images = rng.integers(0, 156, size=(count, 8, 8, 1)) + 10 * labels[:, None, None, None]
    return tf.data.Dataset.from_tensor_slices((images.astype("uint8"), labels))


def scale(image, label):
    return tf.cast(image, tf.float32) / 255, label


train_dataset = pictures(BUFFER_SIZE, 1).map(scale).cache().shuffle(BUFFER_SIZE).batch(BATCH_SIZE)
eval_dataset = pictures(100, 2).map(scale).batch(BATCH_SIZE)

with strategy.scope():
    model = tf.keras.Sequential(
        [
            tf.keras.Input((8, 8, 1)),
            tf.keras.layers.Conv2D(8, 3, activation="relu"),
            tf.keras.layers.MaxPooling2D(),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(16, activation="relu"),
            tf.keras.layers.Dense(10),
        ]
    )
    model.compile(
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=tf.keras.optimizers.Adam(learning_rate=0.001),
        metrics=["accuracy"],
    )

checkpoint_prefix = "training_checkpoints/ckpt_{epoch}.weights.h5"


def decay(epoch):
    return 1e-2 if epoch < 2 else 1e-3


class PrintLR(tf.keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        print(f"learning rate for epoch {epoch + 1} is {model.optimizer.learning_rate.numpy()}")


callbacks = [
    tf.keras.callbacks.TensorBoard(log_dir="logs"),
    tf.keras.callbacks.ModelCheckpoint(filepath=checkpoint_prefix, save_weights_only=True),
    tf.keras.callbacks.LearningRateScheduler(decay),
    PrintLR(),
]
history = model.fit(train_dataset, epochs=EPOCHS, callbacks=callbacks)

model.load_weights(checkpoint_prefix.format(epoch=EPOCHS))
evaluated = model.evaluate(eval_dataset)
model.save("my_model.keras")
with strategy.scope():
    replicated_model = tf.keras.models.load_model("my_model.keras")
    again = replicated_model.evaluate(eval_dataset)
assert np.allclose(evaluated, again)
