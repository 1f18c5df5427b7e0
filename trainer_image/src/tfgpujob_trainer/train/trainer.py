"""The part of a training run that depends on the kind of strategy; everything else is the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

import keras

from tfgpujob_trainer.data.schedule import Schedule
from tfgpujob_trainer.data.sources import Source
from tfgpujob_trainer.model.optimizer_takeover import OptimizerTakeover
from tfgpujob_trainer.train.built_model import Built, Steps
from tfgpujob_trainer.train.run import Position, Run

S = TypeVar("S", bound=Steps)

Evaluate = Callable[..., dict[str, Any]]
"""`loss` and the metrics over all rows of a split, a `Source`; the hooks are called for each batch."""


class Trainer(Protocol[S]):
    """How the tasks of a strategy train one model. Each method is called once, in this order.

    Synchronous, replicas in step: train/loop.py. Asynchronous, with parameter servers: parameter_server/trainer.py.
    """

    def data_policy(self, data: Source) -> str:
        """How the workers share the training rows; raises ConfigError for data that can't be shared."""

    def build_steps(self, model: keras.Model, takeover: OptimizerTakeover, data: Source, schedule: Schedule) -> S:
        """The training and evaluation steps of the model; raises ConfigError for settings that are not supported."""

    def evaluator(self, built: Built[S]) -> Evaluate:
        """The evaluator of the built model."""

    def train(self, run: Run[S]) -> tuple[Position, Mapping[str, Any]]:
        """Train to the last step; returns the position, and additions to the summary.

        Raises StoppedError after a cooperative stop (saved), NotFiniteError, FencedError, PeerLostError.
        """
