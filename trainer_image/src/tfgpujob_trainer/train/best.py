"""The best evaluation so far: early stopping, and a checkpoint of the best weights beside the newest ones.

The chief decides and broadcasts, so that all workers stop after the same step. The best evaluation is part of each
checkpoint's state.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from tfgpujob_contract import trainer_config
from tfgpujob_trainer.checkpoints.manager import CheckpointManager
from tfgpujob_trainer.cluster.peers import Peers
from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.contract.text import did_you_mean
from tfgpujob_trainer.reporting.log import say
from tfgpujob_trainer.reporting.numbers import one_number


@dataclass(frozen=True, kw_only=True, slots=True)
class BestEvaluation:
    """The best value, its step, and how many later evaluations in a row were not better."""

    value: float | None = None
    step: int | None = None
    waited: int = 0


def updated(best: BestEvaluation, value: float, step: int, *, minimise: bool, min_delta: float) -> BestEvaluation:
    """The best after another evaluation; NaN is never better."""
    change = np.inf if best.value is None else (best.value - value) * (1 if minimise else -1)
    better = np.isfinite(value) and change > min_delta
    return BestEvaluation(value=value, step=step) if better else replace(best, waited=best.waited + 1)


class Best:
    """Compares evaluations as `settings` says, and saves the best state with `checkpoints`, apart from the newest."""

    def __init__(self, settings: trainer_config.Best, checkpoints: CheckpointManager, peers: Peers) -> None:
        self._settings, self._checkpoints, self._peers = settings, checkpoints, peers
        self.found = BestEvaluation()

    @property
    def stops_early(self) -> bool:
        """Whether training should stop: `patience` evaluations in a row were no better."""
        patience = self._settings.patience
        return patience is not None and self.found.waited >= patience

    def update(self, values: Mapping[str, Any], step: int, state: Mapping[str, Any]) -> str:
        """Take an evaluation and save a checkpoint if it is the best so far; a few words for the log.

        `state` is what a checkpoint of this step would say. Every worker must call it. Raises ConfigError if the
        metric is not there.
        """
        monitor = self._settings.monitor
        if monitor is None:
            return ""
        if monitor not in values:
            raise ConfigError(f"trainer.best.monitor: there is no {monitor!r}", did_you_mean(monitor, list(values)))
        minimise = self._settings.mode != "max"
        value = one_number(values[monitor])
        mine = updated(self.found, value, step, minimise=minimise, min_delta=self._settings.min_delta)
        self.found = BestEvaluation(**json.loads(self._peers.broadcast_from_chief(json.dumps(asdict(mine)).encode())))
        if self.found.step == step:
            self._checkpoints.save(self._peers, step, lambda: {**state, "best": self.to_json()})
            return ", the best so far"
        if self.stops_early:
            say(f"{monitor} was not better than after step {self.found.step} for {self.found.waited} evaluations: done")
        return f", best {self.found.value:.4f} after step {self.found.step}" if self.found.step is not None else ""

    def wait(self) -> None:
        """Return when the best is written."""
        self._checkpoints.wait()

    def restore(self) -> bool:
        """Give the model its best weights, if that is configured and there are any; True if it was done."""
        if not self._settings.restore or self.found.step is None:
            return False
        self._checkpoints.wait()
        restored = self._checkpoints.restore(self._peers)
        if restored is None:
            say(f"the weights of step {self.found.step}, the best, are not in this directory: keeping the last ones")
            return False
        self.found = replace(BestEvaluation(**restored["best"]), waited=self.found.waited)
        say(f"back to the weights of step {self.found.step}, with {self._settings.monitor} {self.found.value:.4f}")
        return True

    def to_json(self) -> dict[str, Any]:
        """For the summary, and for a checkpoint's state."""
        return asdict(self.found)

    @property
    def criterion(self) -> list[str | None]:
        """What makes two evaluations comparable: the metric and its direction."""
        return [self._settings.monitor, self._settings.mode or "min"]

    def resumed(self, state: Mapping[str, Any], step: int) -> None:
        """Continue from a checkpoint's state; evaluations after that step will be repeated."""
        before = state["bestJudgedBy"]
        if before == self.criterion:
            self.found = BestEvaluation(**state["best"])
        elif self._settings.monitor is not None:
            say(f"trainer.best judges by {self._settings.monitor} now, not by {before[0]}: what was best is forgotten")
        self._checkpoints.forget(self._peers, newer_than=step)
