"""A custom training loop on all GPUs of a machine, as TensorFlow's guide has it: strategy.run, metrics, checkpoints."""

import os

import numpy as np
import tensorflow as tf

strategy = tf.distribute.MirroredStrategy()
BATCH_SIZE_PER_REPLICA = int(os.environ.get("ROWS", "64")) // strategy.num_replicas_in_sync
GLOBAL_BATCH_SIZE = BATCH_SIZE_PER_REPLICA * strategy.num_replicas_in_sync
EPOCHS = 3


def pictures(count, seed):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 10, size=count)
    images = rng.normal(size=(count, 8, 8, 1)) + labels[:, None, None, None] / 3
    return tf.data.Dataset.from_tensor_slices((images, labels)).batch(GLOBAL_BATCH_SIZE)


train_dist_dataset = strategy.experimental_distribute_dataset(pictures(320, 1))
test_dist_dataset = strategy.experimental_distribute_dataset(pictures(128, 2))

with strategy.scope():
    tf.keras.utils.set_random_seed(1)
    model = tf.keras.Sequential(
        [
            tf.keras.Input((8, 8, 1)),
            tf.keras.layers.Conv2D(8, 3, activation="relu"),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(10),
        ]
    )
    optimizer = tf.keras.optimizers.SGD(learning_rate=0.05)
    loss_object = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
    test_loss = tf.keras.metrics.Mean(name="test_loss")
    train_accuracy = tf.keras.metrics.SparseCategoricalAccuracy(name="train_accuracy")
    checkpoint = tf.train.Checkpoint(optimizer=optimizer, model=model)


def compute_loss(labels, predictions):
    return tf.nn.compute_average_loss(loss_object(labels, predictions), global_batch_size=GLOBAL_BATCH_SIZE)


def train_step(inputs):
    images, labels = inputs
    with tf.GradientTape() as tape:
        predictions = model(images, training=True)
        loss = compute_loss(labels, predictions)
    optimizer.apply_gradients(
        zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True)
    )
    train_accuracy.update_state(labels, predictions)
    return loss


def test_step(inputs):
    images, labels = inputs
    test_loss.update_state(loss_object(labels, model(images, training=False)))


@tf.function
def distributed_train_step(inputs):
    per_replica_losses = strategy.run(train_step, args=(inputs,))
    return strategy.reduce(tf.distribute.ReduceOp.SUM, per_replica_losses, axis=None)


@tf.function
def distributed_test_step(inputs):
    return strategy.run(test_step, args=(inputs,))


for epoch in range(EPOCHS):
    losses = [float(distributed_train_step(batch)) for batch in train_dist_dataset]
    for batch in test_dist_dataset:
        distributed_test_step(batch)
    checkpoint.save("training_checkpoints/ckpt")
    print(
        f"epoch {epoch + 1} loss {np.mean(losses):.12f} accuracy {float(train_accuracy.result()):.12f} "
        f"test loss {float(test_loss.result()):.12f}"
    )
    test_loss.reset_state()
    train_accuracy.reset_state()
print("replicas", strategy.num_replicas_in_sync)
