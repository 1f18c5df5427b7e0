"""A model with its data and steps, built under a strategy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import keras

from tfgpujob_trainer.data.schedule import Schedule
from tfgpujob_trainer.data.sources import Source
from tfgpujob_trainer.model.loss import LossSums
from tfgpujob_trainer.model.metrics import MetricStates
from tfgpujob_trainer.model.optimizer_takeover import OptimizerTakeover
from tfgpujob_trainer.model.variables import PlainVariable
from tfgpujob_trainer.step.compiled import StepResult
from tfgpujob_trainer.train.fit import Fit
from tfgpujob_trainer.train.session import Session


class Steps(Protocol):
    """The steps of one model, without the way of taking them."""

    notes: list[str]
    """Log lines about how they are computed."""

    @property
    def captured(self) -> list[PlainVariable]:
        """Variables that the step reads or changes besides those of the model and its optimizers."""

    @property
    def draws(self) -> bool:
        """Whether a step has random operations whose state no checkpoint keeps."""

    def values(self, loss: LossSums, states: list[Any]) -> dict[str, Any]:
        """Loss and metrics of the training from their sums."""


class SynchronizedSteps(Steps, Protocol):
    """Steps that all replicas take together: step/synchronous.py, or the model's own train_step in step/own_step.py."""

    metric_states: MetricStates

    def train(
        self,
        batches: Any,
        *,
        edges: Any,
        stop: bool,
        hold: bool = False,
        own_seconds: float = 0.0,
        whole: bool = True,
    ) -> StepResult:
        """One optimizer step on this worker's part of a global batch."""

    def add_loss(self, total: LossSums, step: LossSums, rows: int) -> LossSums:
        """`total` plus the loss of another step, or batch of an evaluation, with this many rows on all workers."""

    def evaluate(self, batches: Any, edges: Any) -> StepResult:
        """One batch of an evaluation; `edges` as in `train`."""

    def try_on(self, places: Sequence[Any], *, training: bool = True) -> None:
        """Find how replicas share the steps, or evaluations, from rows of several places of the data."""

    def has_changed(self) -> bool:
        """Whether the steps should be tried again."""

    def try_again(self, *, trace: bool) -> list[str]:
        """Fit the steps to the values of now, also to Python's with `trace`; what is new to say of them."""

    def values(self, loss: LossSums, states: list[Any], *, training: bool = True) -> dict[str, Any]:
        """Loss and metrics of the training, or of an evaluation, from their sums."""


S_co = TypeVar("S_co", bound=Steps, covariant=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class Built(Generic[S_co]):
    """What training and evaluation share."""

    fit: Fit
    session: Session
    model: keras.Model
    takeover: OptimizerTakeover
    steps: S_co
    schedule: Schedule
    data: Source
    validation: Source | None
    test: Source | None
