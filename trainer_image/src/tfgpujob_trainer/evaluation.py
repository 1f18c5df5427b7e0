"""Exact evaluation: loss and metrics over every row once, summed over all workers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import keras
import tensorflow as tf

from tfgpujob_trainer import heartbeat, metrics
from tfgpujob_trainer.data import Feed, Schedule
from tfgpujob_trainer.heartbeat import Heartbeat
from tfgpujob_trainer.sources import Source
from tfgpujob_trainer.step import Steps

LossSums = tuple[tuple[float, float | None], ...]
"""(numerator sum, normaliser sum) of each part of the loss; a plain sum has no normaliser."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluator:
    """Evaluates a model on a split, with the replicas and batch size of the training."""

    strategy: tf.distribute.Strategy
    model: keras.Model
    steps: Steps
    schedule: Schedule
    first_replica: int
    heart: Heartbeat

    def __call__(self, data: Source) -> dict[str, float]:
        """`loss` and the metrics over all rows, none padded or left out. Resets the model's metrics."""
        self.steps.metric_states.reset()
        schedule = evaluation_schedule(self.schedule, data.rows)
        feed = Feed(data, schedule, self.first_replica, len(self.strategy.extended.worker_devices), (0, 0))
        loss: LossSums = ()
        states: list[Any] = []
        try:
            for _ in range(schedule.steps_per_epoch):
                result = self.steps.evaluate(feed.next().replicas)
                loss, states = add_loss(loss, result.groups), result.metrics
                self.heart.beat(heartbeat.EVALUATING)
        finally:
            feed.close()
        values = metrics.results(self.model, states)
        self.steps.metric_states.reset()
        return {"loss": mean_loss(loss) + self.steps.regularisation(), **values}


def evaluation_schedule(training: Schedule, rows: int) -> Schedule:
    """The batches of an evaluation: all rows once, in their order, as many at a time as in a training step."""
    return replace(
        training,
        rows=rows,
        global_batch_size=max(training.replicas, training.global_batch_size // training.accumulate),
        shuffle=False,
        remainder="carry",
        accumulate=1,
        epochs=1,
    )


def add_loss(total: LossSums, groups: list[Any]) -> LossSums:
    """`total` with the sums of one more batch."""
    numbers = [(float(n), None if d is None else float(d)) for n, d in groups]
    if not total:
        return tuple(numbers)
    return tuple(
        (n0 + n1, None if d0 is None or d1 is None else d0 + d1)
        for (n0, d0), (n1, d1) in zip(total, numbers, strict=True)
    )


def mean_loss(loss: LossSums) -> float:
    """The sums as one loss, without weight regularisers."""
    return sum(n if d is None else n / d if d else 0.0 for n, d in loss)
