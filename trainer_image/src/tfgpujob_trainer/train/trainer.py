"""What a kind of strategy decides about a training run; everything else is the same for all of them."""

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
"""`loss` and the metrics over all rows of a split, a `Source`; it may be given what is told of each batch."""


class Trainer(Protocol[S]):
    """How the tasks of a strategy train one model. The methods are called in this order, each once.

    Synchronous, replicas in step: train/loop.py. Asynchronous, with parameter servers: parameter_server/trainer.py.
    """

    def data_policy(self, data: Source) -> str:
        """How the workers share the training rows; raises ConfigError for data that they cannot share."""

    def build_steps(self, model: keras.Model, takeover: OptimizerTakeover, data: Source, schedule: Schedule) -> S:
        """The training and evaluation steps of the model; raises ConfigError for settings that they do not know."""

    def evaluator(self, built: Built[S]) -> Evaluate:
        """What evaluates the model that was built."""

    def train(self, run: Run[S]) -> tuple[Position, Mapping[str, Any]]:
        """Train to the last step; where that is, and what the summary says besides.

        Raises StoppedError after a cooperative stop (saved), NotFiniteError, FencedError, PeerLostError.
        """
