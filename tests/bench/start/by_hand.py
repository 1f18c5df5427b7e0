"""The floor of `make bench-start`: the digits example without a job, as two processes that a careful hand starts.

    python by_hand.py FOLDER STEPS

TF_CONFIG says of how many it is one. Continues from the checkpoint in FOLDER, trains STEPS steps, saves one, and prints
the times since 1970 at which it had imported, had found its peers, had built (and restored), and had done its first
step, as one line of JSON.
"""

import json
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any

marks: dict[str, float] = {}


def mark(name: str) -> None:
    marks.setdefault(name, time.time())


import keras  # noqa: E402
import tensorflow as tf  # noqa: E402

from tfgpujob_trainer.builtin import digits  # noqa: E402

mark("imported")
folder, steps = Path(sys.argv[1]), int(sys.argv[2])
config = json.loads(os.environ["TF_CONFIG"])
for address in config["cluster"]["worker"]:
    while True:
        try:
            socket.getaddrinfo(address.rpartition(":")[0], None)
            break
        except OSError:
            time.sleep(0.25)
mark("resolved")
strategy = tf.distribute.MultiWorkerMirroredStrategy()
keras.utils.set_random_seed(1)
with strategy.scope():
    model = digits.model()
    optimizer = model.optimizer
    optimizer.build(model.trainable_variables)
saved = folder / "by_hand.weights.h5"
if saved.exists():
    model.load_weights(saved)
rows = tf.data.Dataset.from_tensor_slices(digits.data("train")).shuffle(2000, seed=1).repeat().batch(128)
options = tf.data.Options()
options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
batches = iter(strategy.experimental_distribute_dataset(rows.with_options(options)))
loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")
mark("restored")


@tf.function
def step(batch: Any) -> Any:
    def of_replica(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True)) / 128
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    return strategy.reduce("SUM", strategy.run(of_replica, args=batch), axis=None)


for _ in range(steps):
    float(step(next(batches)))
    mark("stepped")
if config["task"]["index"] == 0:
    folder.mkdir(parents=True, exist_ok=True)
    model.save_weights(saved)
print(json.dumps(marks), flush=True)
