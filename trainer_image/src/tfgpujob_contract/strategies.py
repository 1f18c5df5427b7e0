"""The strategies of spec.strategy, and what they mean to a task of the bundled trainer."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Strategy(StrEnum):
    """spec.strategy: which tf.distribute strategy the pods run."""

    ONE_DEVICE = "OneDevice"
    MIRRORED = "Mirrored"
    MULTI_WORKER_MIRRORED = "MultiWorkerMirrored"
    PARAMETER_SERVER = "ParameterServer"
    CUSTOM = "Custom"
    """The user's own program, which the trainer does not run; mode predict, which needs no strategy, uses it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Traits:
    """Traits of a strategy for its tasks."""

    single_replica: bool = False
    """One replica on one device: no all-reduce; the reference for the other strategies."""
    clustered: bool = False
    """Several tasks train one model, and TF_CONFIG names them."""
    asynchronous: bool = False
    """A chief dispatches the steps, workers do not wait for each other, and parameter servers hold the variables."""

    @property
    def has_collectives(self) -> bool:
        """True if the tasks all-reduce, so that a stalled task stalls all others."""
        return self.clustered and not self.asynchronous


STRATEGIES: dict[str, Traits] = {
    Strategy.ONE_DEVICE: Traits(single_replica=True),
    Strategy.MIRRORED: Traits(),
    Strategy.MULTI_WORKER_MIRRORED: Traits(clustered=True),
    Strategy.PARAMETER_SERVER: Traits(clustered=True, asynchronous=True),
}


def traits(strategy: str) -> Traits:
    """The traits of a strategy; under Custom a task has only its own devices."""
    return STRATEGIES.get(strategy, Traits())


def strategy_of(*, has_servers: bool) -> str:
    """The strategy of a cluster without a given one, by whether it has parameter servers."""
    return next(name for name, its in STRATEGIES.items() if its.clustered and its.asynchronous == has_servers)
