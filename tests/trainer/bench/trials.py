"""What is timed: some steps of the trainer's own loop, or of a hand-written TensorFlow loop with the same work."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tests.trainer.inprocess import entrypoint

from tfgpujob_trainer.contract import config, environment
from tfgpujob_trainer.data.feed import Feed
from tfgpujob_trainer.reporting.heartbeat import Heartbeat
from tfgpujob_trainer.train import loop
from tfgpujob_trainer.train.assemble import assemble
from tfgpujob_trainer.train.build import build_model
from tfgpujob_trainer.train.fit import fit_of_module
from tfgpujob_trainer.train.loop import SynchronousTrainer
from tfgpujob_trainer.train.run import Position
from tfgpujob_trainer.train.session import Session

Trial = Callable[[int], float]
"""Does that many steps; seconds."""

SMALL, LARGE = (32, 32, 3), (64, 64, 3)
"""The pictures of conv_model and deep_model."""


def conv_model() -> keras.Model:
    """A step of 64 pictures keeps a core busy for some 30 ms: what a loop does beside it shows."""
    layers = keras.layers
    return _compiled(
        keras.Sequential(
            [keras.Input(SMALL), *_convolutions(48, 96), layers.GlobalAveragePooling2D(), layers.Dense(10)]
        )
    )


def deep_model() -> keras.Model:
    """Mostly computation, some 270 ms of a core for 64 pictures, for 126 thousand weights."""
    layers = keras.layers
    more = layers.Conv2D(96, 3, padding="same", activation="relu")
    return _compiled(
        keras.Sequential(
            [keras.Input(LARGE), *_convolutions(48, 96), more, layers.GlobalAveragePooling2D(), layers.Dense(10)]
        )
    )


def _convolutions(first: int, second: int) -> list[keras.Layer]:
    layers = keras.layers
    return [
        layers.Conv2D(first, 3, padding="same", activation="relu"),
        layers.MaxPooling2D(),
        layers.Conv2D(second, 3, padding="same", activation="relu"),
    ]


def dense_model() -> keras.Model:
    """Many weights for little computation: 2.4 million, which the all-reduce must carry."""
    layers = keras.layers
    return _compiled(
        keras.Sequential([keras.Input((256,)), *(layers.Dense(1024, "relu") for _ in range(3)), layers.Dense(10)])
    )


def wide_model(blocks: int = 12) -> keras.Model:
    """Few weights and many activations: each block's widest are 1024 numbers a row and position."""
    inputs = x = keras.Input((128, 64))
    for i in range(blocks):
        block = keras.Sequential([keras.layers.Dense(1024, "gelu"), keras.layers.Dense(64)], name=f"block{i}")
        x = x + block(x)
    return _compiled(keras.Model(inputs, keras.layers.Dense(10)(keras.layers.GlobalAveragePooling1D()(x))))


def _compiled(net: keras.Model) -> keras.Model:
    net.compile(
        keras.optimizers.Adam(1e-3),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return net


def arrays(shape: tuple[int, ...], rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Made-up rows of that shape, and classes."""
    rng = np.random.default_rng(3)
    return rng.standard_normal((rows, *shape), "float32"), rng.integers(0, 10, rows)


def trainers(
    make: Callable[[], keras.Model], rows: Any, batch: int, strategy: tf.distribute.Strategy, **fields: Any
) -> Trial:
    """Steps of the trainer's own loop, with its reading, progress and stop flag."""
    settings = config.parse(
        {
            "entrypoint": "made_for_a_test",
            "globalBatchSize": batch,
            "epochs": 10**6,
            "output": {"directory": tempfile.mkdtemp(prefix="bench-trainer-")},
            "checkpoint": {"everyEpochs": 10**6},
            "logEverySeconds": 10**6,
            **fields,
        }
    )
    workers = isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
    name = "Mirrored" if strategy.num_replicas_in_sync > 1 else "OneDevice"
    env = environment.read(os.environ) if workers else environment.Environment(strategy=name)
    session = Session(job=settings, env=env, strategy=strategy, heartbeat=Heartbeat(None))
    with strategy.scope():
        trainer = SynchronousTrainer(settings, session)
        fit = fit_of_module(settings, entrypoint(make, rows), env, session.heartbeat)
        built = build_model(fit, session, trainer)
        run = assemble(built, trainer.evaluator(built))
    reads = settings.data.parallel_reads
    feed = Feed(built.data, built.schedule, session.first_replica, session.local_replicas, (0, 0), parallel_reads=reads)
    position = Position()

    def steps(count: int) -> float:
        nonlocal position
        began = time.perf_counter()
        for _ in range(count):
            position = loop._one_step(run, feed, position)
        return time.perf_counter() - began

    return steps


def hand_written(
    make: Callable[[], keras.Model], data: Any, batch: int, strategy: tf.distribute.Strategy, *, jit: bool = False
) -> Trial:
    """The loop of TensorFlow's own guides: a distributed dataset, strategy.run, the optimizer's all-reduce.

    `jit`: the function of a replica is compiled with XLA, which takes a single replica.
    """
    with strategy.scope():
        model = make()
        model.optimizer.build(model.trainable_variables)
        accuracy = keras.metrics.SparseCategoricalAccuracy()
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=None)
    rows = len(data[0])
    dataset = tf.data.Dataset.from_tensor_slices(data).shuffle(rows).repeat().batch(batch).prefetch(4)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    batches = iter(strategy.experimental_distribute_dataset(dataset.with_options(options)))

    def replica(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            logits = model(x, training=True)
            loss = tf.reduce_sum(loss_of(y, logits)) / batch
        model.optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        accuracy.update_state(y, logits)
        return loss

    compiled = tf.function(replica, jit_compile=True) if jit else replica

    @tf.function
    def step(x: Any, y: Any) -> Any:
        losses = strategy.run(compiled, args=(x, y))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    def steps(count: int) -> float:
        began = time.perf_counter()
        for _ in range(count):
            loss = step(*next(batches))
        float(loss)
        return time.perf_counter() - began

    return steps


def in_turns(
    trials: Mapping[str, Trial],
    rounds: int,
    steps: int,
    *,
    epoch: int,
    cpu: Callable[[str], float] = lambda _: time.process_time(),
) -> dict[str, list[float]]:
    """Seconds of each trial in each round, by the clock and, as `NAME_cpu`, of all threads of its process.

    `cpu`: what those of a trial have taken so far; by default its process is this one. Who begins changes from round to
    round. The first `epoch` steps don't count, nor the end of that epoch.
    """
    for trial in trials.values():
        trial(epoch + 1)
    found: dict[str, list[float]] = {f"{name}{kind}": [] for name in trials for kind in ("", "_cpu")}
    for number in range(rounds):
        for name in list(trials)[:: -1 if number % 2 else 1]:
            trials[name](1)  # workers wait for each other here, and not in what is timed
            began = cpu(name)
            found[name].append(trials[name](steps))
            found[f"{name}_cpu"].append(cpu(name) - began)
    return found
