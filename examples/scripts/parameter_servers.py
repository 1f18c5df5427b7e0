"""Parameter servers, as TensorFlow's guide has it: servers wait in the same script, and the chief calls fit()."""

import argparse

import numpy as np
import tensorflow as tf


def load_data(count, seed):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 10, size=count).astype("uint8")
    images = rng.integers(0, 156, size=(count, 8, 8)) + 10 * labels[:, None, None]
    return tf.data.Dataset.from_tensor_slices((images.astype("uint8"), labels))


def preprocess(dataset, batch_size):
    def normalize(image, label):
        return tf.cast(image, tf.float32) / 255.0, label

    dataset = dataset.map(normalize, num_parallel_calls=tf.data.AUTOTUNE).shuffle(1000)
    return dataset.batch(batch_size).prefetch(tf.data.AUTOTUNE)


def build_model(learning_rate):
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Input(shape=(8, 8)),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(32, activation="relu"),
            tf.keras.layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile(tf.keras.optimizers.Adam(learning_rate), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def main(args):
    cluster_resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if cluster_resolver.task_type in ("worker", "ps"):
        server = tf.distribute.Server(
            cluster_resolver.cluster_spec(),
            job_name=cluster_resolver.task_type,
            task_index=cluster_resolver.task_id,
            protocol=cluster_resolver.rpc_layer or "grpc",
        )
        server.join()
    partitioner = tf.distribute.experimental.partitioners.MinSizePartitioner(
        min_shard_bytes=256 << 10, max_shards=cluster_resolver.cluster_spec().num_tasks("ps")
    )
    strategy = tf.distribute.ParameterServerStrategy(cluster_resolver, variable_partitioner=partitioner)
    with strategy.scope():
        model = build_model(args.learning_rate)
    train = preprocess(load_data(400, 1).repeat(), args.batch_size)
    history = model.fit(train, epochs=args.epochs, steps_per_epoch=6)
    evaluated = model.evaluate(preprocess(load_data(100, 2), args.batch_size))
    return model, history, evaluated


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch_size", type=int, default=50)
    parser.add_argument("--learning_rate", type=float, default=0.01)
    parser.add_argument("--epochs", type=int, default=3)
    model, history, evaluated = main(parser.parse_args())
