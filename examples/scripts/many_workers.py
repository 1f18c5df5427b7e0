"""Many workers, as Kubeflow's example has it: options of the dataset, a scheduled learning rate, TF_CONFIG's index."""

import argparse
import json
import os

import numpy as np
import tensorflow as tf
from tensorflow.keras import layers, models


def make_datasets_unbatched():
    rng = np.random.default_rng(5)
    labels = rng.integers(0, 10, size=300)
    images = rng.normal(size=(300, 12, 12, 1)) * 40 + 20 * labels[:, None, None, None]

    def scale(image, label):
        return tf.cast(image, tf.float32) / 255, label

    return tf.data.Dataset.from_tensor_slices((images, labels)).map(scale).cache().shuffle(1000)


def build_and_compile_cnn_model():
    model = models.Sequential()
    model.add(layers.Conv2D(4, (3, 3), activation="relu", input_shape=(12, 12, 1)))
    model.add(layers.MaxPooling2D((2, 2)))
    model.add(layers.Conv2D(8, (3, 3), activation="relu"))
    model.add(layers.Flatten())
    model.add(layers.Dense(16, activation="relu"))
    model.add(layers.Dense(10, activation="softmax"))
    model.summary()
    model.compile(optimizer="adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def decay(epoch):
    if epoch < 1:
        return 1e-2
    if 1 <= epoch < 3:
        return 1e-3
    return 1e-4


def main(args):
    strategy = tf.distribute.MultiWorkerMirroredStrategy(
        communication_options=tf.distribute.experimental.CommunicationOptions(
            implementation=tf.distribute.experimental.CollectiveCommunication.AUTO
        )
    )
    with strategy.scope():
        ds_train = make_datasets_unbatched().batch(args.batch_size).repeat()
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
        ds_train = ds_train.with_options(options)
        model = build_and_compile_cnn_model()

    class PrintLR(tf.keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            print(f"\nLearning rate for epoch {epoch + 1} is {float(model.optimizer.learning_rate)}")

    callbacks = [
        tf.keras.callbacks.TensorBoard(log_dir=args.logs),
        tf.keras.callbacks.ModelCheckpoint(args.checkpoint_dir + "/ckpt_{epoch}.weights.h5", save_weights_only=True),
        tf.keras.callbacks.LearningRateScheduler(decay),
        tf.keras.callbacks.BackupAndRestore(args.checkpoint_dir + "/backup"),
        PrintLR(),
    ]
    history = model.fit(ds_train, epochs=4, steps_per_epoch=5, callbacks=callbacks)

    task = json.loads(os.environ.get("TF_CONFIG") or "{}").get("task", {"index": 0})
    path = args.saved_model_dir if task["index"] == 0 else f"{args.saved_model_dir}/worker_tmp_{task['index']}"
    model.export(path)
    return model, history


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch_size", type=int, default=64)
    parser.add_argument("--saved_model_dir", default="saved_model")
    parser.add_argument("--checkpoint_dir", default="checkpoints")
    parser.add_argument("--logs", default="logs")
    model, history = main(parser.parse_args())
