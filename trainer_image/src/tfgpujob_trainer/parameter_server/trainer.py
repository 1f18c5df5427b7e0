"""Asynchronous training: the chief's side of train/trainer.py's protocol."""

from __future__ import annotations

from typing import Any

import keras

from tfgpujob_contract.trainer_config import TrainerConfig
from tfgpujob_trainer.data.schedule import Schedule
from tfgpujob_trainer.data.sources import Source
from tfgpujob_trainer.data.sources.batches import Batches
from tfgpujob_trainer.model.batch import batch_spec
from tfgpujob_trainer.model.optimizer_takeover import OptimizerTakeover
from tfgpujob_trainer.parameter_server.dispatch import Dispatcher
from tfgpujob_trainer.parameter_server.evaluate import ServerEvaluator
from tfgpujob_trainer.parameter_server.loop import train_on_workers
from tfgpujob_trainer.parameter_server.rows import batch_policy
from tfgpujob_trainer.parameter_server.step import ServerSteps
from tfgpujob_trainer.train.built_model import Built
from tfgpujob_trainer.train.loop import SynchronousTrainer
from tfgpujob_trainer.train.run import Position, Run
from tfgpujob_trainer.train.session import Session
from tfgpujob_trainer.train.trainer import Trainer


class ParameterServerTrainer:
    """Schedules the steps on workers that do not wait for each other."""

    _dispatcher: Dispatcher

    def __init__(self, settings: TrainerConfig, session: Session) -> None:
        self._settings, self._session = settings, session

    def data_policy(self, data: Source) -> str:
        """By batch; raises ConfigError for rows without an index."""
        return batch_policy(data)

    def build_steps(self, model: keras.Model, takeover: OptimizerTakeover, data: Source, _: Schedule) -> ServerSteps:
        """Steps that a worker computes, with rows that it reads itself."""
        spec, fingerprint = batch_spec(data.example()), data.fingerprint()
        return ServerSteps(
            self._session.strategy,
            model,
            takeover,
            spec,
            fingerprint,
            seed=self._settings.seed,
            first_epoch=data.first_epoch if isinstance(data, Batches) else 0,
            class_weights=self._settings.class_weights,
        )

    def evaluator(self, built: Built[ServerSteps]) -> ServerEvaluator:
        """Evaluation on the workers, to which this connects."""
        # Not earlier: a coordinator has a thread for each worker.
        self._dispatcher = Dispatcher.of(self._session.strategy, self._session.env, self._settings)
        return ServerEvaluator(built, self._dispatcher)

    def train(self, run: Run[ServerSteps]) -> tuple[Position, dict[str, int]]:
        """The chief's loop."""
        return train_on_workers(run, self._dispatcher)


def trainer_of(settings: TrainerConfig, session: Session) -> Trainer[Any]:
    """The way to train under the strategy of the session."""
    return (ParameterServerTrainer if session.env.is_asynchronous else SynchronousTrainer)(settings, session)
