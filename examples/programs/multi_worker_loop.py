"""A custom training loop on several workers, as TensorFlow's guide has it: shards of the input, checkpoints."""

import json
import os

import numpy as np
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
global_batch_size = int(os.environ.get("ROWS", "64"))
steps_per_epoch, num_epochs = 5, 3
task = json.loads(os.environ["TF_CONFIG"])["task"] if os.environ.get("TF_CONFIG") else {"index": 0}
checkpoint_dir = "ckpt" if task["index"] == 0 else f"ckpt/workertemp_{task['index']}"


def dataset_fn(input_context):
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 10, size=320)
    images = rng.normal(size=(320, 8, 8, 1)) + labels[:, None, None, None] / 3
    rows = tf.data.Dataset.from_tensor_slices((images, labels))
    rows = rows.shard(input_context.num_input_pipelines, input_context.input_pipeline_id)
    return rows.repeat().batch(input_context.get_per_replica_batch_size(global_batch_size))


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
    optimizer = tf.keras.optimizers.RMSprop(learning_rate=0.001)
    optimizer.build(model.trainable_variables)
    train_accuracy = tf.keras.metrics.SparseCategoricalAccuracy(name="train_accuracy")
    multi_worker_dataset = strategy.distribute_datasets_from_function(dataset_fn)

epoch = tf.Variable(0, dtype=tf.int64, name="epoch")
checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, epoch=epoch)
manager = tf.train.CheckpointManager(checkpoint, directory=checkpoint_dir, max_to_keep=1)
latest = tf.train.latest_checkpoint("ckpt")
if latest:
    checkpoint.restore(latest)


@tf.function
def train_step(iterator):
    def step_fn(inputs):
        x, y = inputs
        with tf.GradientTape() as tape:
            predictions = model(x, training=True)
            per_batch_loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")(
                y, predictions
            )
            loss = tf.nn.compute_average_loss(per_batch_loss, global_batch_size=global_batch_size)
        optimizer.apply_gradients(
            zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True)
        )
        train_accuracy.update_state(y, predictions)
        return loss

    per_replica_losses = strategy.run(step_fn, args=(next(iterator),))
    return strategy.reduce(tf.distribute.ReduceOp.SUM, per_replica_losses, axis=None)


while epoch.numpy() < num_epochs:
    iterator = iter(multi_worker_dataset)
    losses = [float(train_step(iterator)) for _ in range(steps_per_epoch)]
    print(f"epoch {epoch.numpy() + 1} loss {np.mean(losses):.12f} accuracy {float(train_accuracy.result()):.12f}")
    train_accuracy.reset_state()
    epoch.assign_add(1)
    manager.save()
print("replicas", strategy.num_replicas_in_sync)
