"""A model with its data and steps, built under a strategy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import keras
import tensorflow as tf

from tfgpujob_trainer.contract.entrypoint import Entrypoint
from tfgpujob_trainer.data.schedule import Schedule
from tfgpujob_trainer.data.sources import Source
from tfgpujob_trainer.model.optimizer_takeover import OptimizerTakeover


class Steps(Protocol):
    """The steps of one model, as whatever does not take them sees them."""

    notes: list[str]
    """Log lines: what a user should know about how they are computed."""

    def regularisation(self) -> float:
        """The weight regularisers' part of the loss, now."""


S_co = TypeVar("S_co", bound=Steps, covariant=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class Built(Generic[S_co]):
    """What training and evaluation have in common. `first_replica` is this worker's, among all replicas."""

    strategy: tf.distribute.Strategy
    module: Entrypoint
    model: keras.Model
    takeover: OptimizerTakeover
    steps: S_co
    schedule: Schedule
    first_replica: int
    data: Source
    validation: Source | None
    test: Source | None

    @property
    def local_replicas(self) -> int:
        """Replicas of this worker."""
        return len(self.strategy.extended.worker_devices)
