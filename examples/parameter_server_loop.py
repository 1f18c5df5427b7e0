"""A custom training loop with parameter servers, as TensorFlow's guide has it: a coordinator gives steps to workers."""

import numpy as np
import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
if resolver.task_type in ("worker", "ps"):
    server = tf.distribute.Server(
        resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id, protocol="grpc"
    )
    server.join()

# From here on it is the chief, which holds no data and no variables.
strategy = tf.distribute.ParameterServerStrategy(resolver)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
steps_per_epoch, num_epochs = 10, 3


def dataset_fn():
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 10, size=320)
    images = rng.normal(size=(320, 8, 8, 1)) + labels[:, None, None, None] / 3
    return tf.data.Dataset.from_tensor_slices((images.astype("float32"), labels)).repeat().batch(32)


with strategy.scope():
    tf.keras.utils.set_random_seed(1)
    model = tf.keras.Sequential([tf.keras.Input((8, 8, 1)), tf.keras.layers.Flatten(), tf.keras.layers.Dense(10)])
    optimizer = tf.keras.optimizers.SGD(learning_rate=0.05)
    optimizer.build(model.trainable_variables)
    train_accuracy = tf.keras.metrics.SparseCategoricalAccuracy(name="train_accuracy")
    epoch = tf.Variable(0, dtype=tf.int64, name="epoch")

checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, epoch=epoch)
manager = tf.train.CheckpointManager(checkpoint, directory="ckpt", max_to_keep=1)
checkpoint.restore(manager.latest_checkpoint)


@tf.function
def train_step(iterator):
    def step_fn(inputs):
        images, labels = inputs
        with tf.GradientTape() as tape:
            predictions = model(images, training=True)
            losses = tf.keras.losses.sparse_categorical_crossentropy(labels, predictions, from_logits=True)
            loss = tf.reduce_mean(losses)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        train_accuracy.update_state(labels, predictions)
        return loss

    return strategy.run(step_fn, args=(next(iterator),))


# Each worker reads a dataset of its own.
per_worker_dataset = coordinator.create_per_worker_dataset(dataset_fn)
while epoch.numpy() < num_epochs:
    iterator = iter(per_worker_dataset)
    losses = [coordinator.schedule(train_step, args=(iterator,)) for _ in range(steps_per_epoch)]
    coordinator.join()  # until all steps are done; a step of a lost worker is done by another
    loss = np.mean([float(loss.fetch()) for loss in losses])
    print(f"epoch {epoch.numpy() + 1} loss {loss:.12f} accuracy {float(train_accuracy.result()):.12f}")
    train_accuracy.reset_state()
    epoch.assign_add(1)
    manager.save()
