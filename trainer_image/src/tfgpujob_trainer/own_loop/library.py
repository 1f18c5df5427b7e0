"""The functions of `import tfgpujob_trainer as tfgpu`. Each works without the others; none is required in a pod."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import tensorflow as tf

from tfgpujob_trainer.own_loop.checkpoint import Checkpoint
from tfgpujob_trainer.own_loop.reporter import Reporter
from tfgpujob_trainer.own_loop.task import Task, explained


@cache
def _task() -> Task:
    return Task()


@cache
def _reporter() -> Reporter:
    return Reporter(_task().run_status)


@explained
def strategy() -> tf.distribute.Strategy:
    """The job's tf.distribute strategy, the same at each call; call it before any other function of TensorFlow.

    It uses the granted GPUs with the memory limit of spec.gpu, waits until the other workers' names resolve, and
    handles SIGTERM, which TensorFlow would swallow. Outside a job it is the strategy of one device.
    """
    return _task().strategy


@explained
def shard(dataset: tf.data.Dataset) -> Any:
    """This worker's share of each batch of a dataset: its batches are the global ones, the same on every worker.

    Iterate it with `for`, and pass each element to strategy.run(). After a resume, skip() the batches that were trained
    before.
    """
    return _task().shard(dataset)


@explained
def checkpoint(directory: str | Path, /, *, keep: int = 3, **objects: Any) -> Checkpoint:
    """Checkpoints of these objects in a directory: models, built optimizers, variables, or lists of them.

    The first worker writes, reads and broadcasts, so the directory need not be shared. A newer start of the job takes
    it over; an older one that still runs ends at its next save.
    """
    return Checkpoint(_task(), Path(directory), keep, objects)


def report(
    *,
    step: int,
    loss: Any = None,
    steps: int | None = None,
    epoch: int | None = None,
    epochs: int | None = None,
    examples: int | None = None,
    **metrics: Any,
) -> None:
    """Report a completed step: for GET /progress, and every 10 s for the log. Numbers are read at most once a second.

    `steps`: the total; `examples`: the rows of a step, for the speed; `metrics`: other numbers for the log.
    """
    _reporter().report({"step": step, "steps": steps, "epoch": epoch, "epochs": epochs}, loss, examples, metrics)


@explained
def should_stop() -> bool:
    """True if a worker was asked to stop, by SIGTERM: then save, and exit with code 143.

    All workers get True at the same call, so each must call it equally often. It is a small all-reduce.
    """
    return _task().should_stop()
