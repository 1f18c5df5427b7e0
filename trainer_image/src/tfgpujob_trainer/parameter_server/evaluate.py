"""Exact evaluation on the workers, or on the chief: each row counts once, even if a batch is computed twice."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from tfgpujob_contract import phases
from tfgpujob_trainer.data.schedule import Schedule, evaluation_schedule
from tfgpujob_trainer.data.sources import Source
from tfgpujob_trainer.model.batch import number
from tfgpujob_trainer.model.loss import LossSums, add_loss
from tfgpujob_trainer.parameter_server.dispatch import Dispatcher
from tfgpujob_trainer.parameter_server.rows import ROWS, TEST, TRAIN, VALIDATION, Rows, Split, numbered, register
from tfgpujob_trainer.parameter_server.step import ServerSteps
from tfgpujob_trainer.reporting.heartbeat import Heartbeat
from tfgpujob_trainer.train.built_model import Built
from tfgpujob_trainer.train.callbacks import BatchHooks


class ServerEvaluator:
    """Evaluates the model while no training step is scheduled."""

    def __init__(self, built: Built[ServerSteps], dispatcher: Dispatcher) -> None:
        self._built, self._steps, self._dispatcher = built, built.steps, dispatcher

    def __call__(self, data: Source, _hooks: BatchHooks | None = None) -> dict[str, Any]:
        """`loss` and the metrics over all rows of the validation or the test split; batches end in any order."""
        split = VALIDATION if data is self._built.validation else TEST
        batches = evaluation_schedule(self._built.schedule, data).steps_per_epoch
        places = ((split, 0, index) for index in range(batches))
        vectors = (vector for _, vector in self._dispatcher.run(self._steps.evaluate, places))
        return _values(self._steps, vectors, self._built.session.heartbeat)


def evaluate_on_chief(steps: ServerSteps, data: Source, batch_size: int, heartbeat: Heartbeat) -> dict[str, Any]:
    """The same for rows that no worker has: read and computed here, with the variables where they are."""
    plan = Schedule(rows=data.rows, global_batch_size=batch_size, replicas=1, shuffle=False)
    register(ROWS, Rows({TRAIN: Split(numbered(data, "evaluate"), plan)}))
    places = ([number(one, np.int32) for one in (TRAIN, 0, index)] for index in range(plan.steps_per_epoch))
    return _values(steps, (steps.evaluate(*place).numpy() for place in places), heartbeat)


def _values(steps: ServerSteps, vectors: Iterable[np.ndarray], heartbeat: Heartbeat) -> dict[str, Any]:
    loss: LossSums = ()
    states: list[np.ndarray] = []
    for vector in vectors:
        sums = steps.sums(vector)
        loss = add_loss(loss, sums.loss)
        states = [a + b for a, b in zip(states, sums.metrics, strict=True)] if states else sums.metrics
        heartbeat.beat(phases.EVALUATING)
    return steps.values(loss, states)
