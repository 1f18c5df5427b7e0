"""Exact evaluation on the workers: each row counts once, also where a batch is computed twice."""

from __future__ import annotations

import numpy as np

from tfgpujob_trainer.data.schedule import evaluation_schedule
from tfgpujob_trainer.data.sources import Source
from tfgpujob_trainer.model.loss import LossSums, add_loss
from tfgpujob_trainer.parameter_server.dispatch import Dispatcher
from tfgpujob_trainer.parameter_server.rows import TEST, VALIDATION
from tfgpujob_trainer.parameter_server.step import ServerSteps
from tfgpujob_trainer.reporting import phases
from tfgpujob_trainer.reporting.heartbeat import Heartbeat
from tfgpujob_trainer.train.built_model import Built


class ServerEvaluator:
    """Evaluates the model while no training step is scheduled."""

    def __init__(self, built: Built[ServerSteps], dispatcher: Dispatcher, heartbeat: Heartbeat) -> None:
        self._built, self._steps, self._dispatcher, self._heartbeat = built, built.steps, dispatcher, heartbeat

    def __call__(self, data: Source) -> dict[str, float]:
        """`loss` and the metrics over all rows of the validation or the test split."""
        number = VALIDATION if data is self._built.validation else TEST
        batches = evaluation_schedule(self._built.schedule, data).steps_per_epoch
        loss: LossSums = ()
        states: list[np.ndarray] = []
        places = ((number, 0, index) for index in range(batches))
        for _, vector in self._dispatcher.run(self._steps.evaluate, places):
            sums = self._steps.sums(vector)
            loss = add_loss(loss, sums.loss)
            states = [a + b for a, b in zip(states, sums.metrics, strict=True)] if states else sums.metrics
            self._heartbeat.beat(phases.EVALUATING)
        return self._steps.values(loss, states)
