"""A model with its data and steps, built under a strategy."""

from __future__ import annotations

from dataclasses import dataclass

import keras
import tensorflow as tf

from tfgpujob_trainer.contract.entrypoint import Entrypoint
from tfgpujob_trainer.data.schedule import Schedule
from tfgpujob_trainer.data.sources import Source
from tfgpujob_trainer.model.optimizer_takeover import Lifted
from tfgpujob_trainer.parameter_server.step import ServerSteps
from tfgpujob_trainer.report.heartbeat import Heartbeat
from tfgpujob_trainer.step.synchronous import Steps
from tfgpujob_trainer.train.evaluation import Evaluator


@dataclass(frozen=True, kw_only=True, slots=True)
class Built:
    """What training and evaluation have in common. `first_replica` is this worker's, among all replicas."""

    strategy: tf.distribute.Strategy
    module: Entrypoint
    model: keras.Model
    lifted: Lifted
    steps: Steps | ServerSteps
    schedule: Schedule
    first_replica: int
    data: Source
    validation: Source | None
    test: Source | None

    @property
    def local_replicas(self) -> int:
        """Replicas of this worker."""
        return len(self.strategy.extended.worker_devices)

    def evaluator(self, heart: Heartbeat) -> Evaluator:
        """Evaluates this model with the replicas and batch size of the training."""
        assert isinstance(self.steps, Steps)
        return Evaluator(
            strategy=self.strategy,
            model=self.model,
            steps=self.steps,
            schedule=self.schedule,
            first_replica=self.first_replica,
            heart=heart,
        )
