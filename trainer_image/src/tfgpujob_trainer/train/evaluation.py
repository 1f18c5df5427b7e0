"""Exact evaluation: loss and metrics over every row once, summed over all workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tfgpujob_contract import phases
from tfgpujob_trainer.data.feed import Feed
from tfgpujob_trainer.data.schedule import Schedule, evaluation_schedule
from tfgpujob_trainer.data.sources import Source
from tfgpujob_trainer.model.loss import LossSums
from tfgpujob_trainer.reporting.log import say
from tfgpujob_trainer.step.trial import ROWS
from tfgpujob_trainer.train.built_model import SynchronizedSteps
from tfgpujob_trainer.train.callbacks import BatchHooks
from tfgpujob_trainer.train.session import Session


@dataclass(frozen=True, slots=True)
class Evaluator:
    """Evaluates a model on a split, with the replicas and batch size of the training."""

    session: Session
    steps: SynchronizedSteps
    schedule: Schedule

    def __call__(self, data: Source, hooks: BatchHooks | None = None) -> dict[str, Any]:
        """`loss` and the metrics over all rows, none padded or left out; the metrics keep what they have counted."""
        hooks = hooks if hooks is not None and hooks.per_test_batch else None
        known = len(self.steps.notes)
        self.steps.try_on(data.places(ROWS), training=False)
        for note in self.steps.notes[known:]:
            say(note)
        self.steps.metric_states.reset()
        schedule = evaluation_schedule(self.schedule, data)
        feed = Feed(data, schedule, self.session.first_replica, self.session.local_replicas, (0, 0))
        loss: LossSums = ()
        states: list[Any] = []
        try:
            for index in range(schedule.steps_per_epoch):
                batch = feed.next()
                if hooks is not None:
                    hooks.test_batch_begin(index)
                result = self.steps.evaluate(batch.replicas, batch.edges)
                loss, states = self.steps.add_loss(loss, result.loss, batch.rows), result.metrics
                if hooks is not None:
                    hooks.test_batch_end(index, self.steps.values(loss, states, training=False))
                self.session.heartbeat.beat(phases.EVALUATING)
        finally:
            feed.close()
        values = self.steps.values(loss, states, training=False)
        self.steps.metric_states.leave(states)
        return values
