"""The best evaluation so far: its weights are kept apart from the newest checkpoints, and training may stop early.

The chief judges and tells the others, so that all workers stop after the same step. What was found is part of
each checkpoint's state.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from tfgpujob_trainer.checkpoint.resume import Resume
from tfgpujob_trainer.cluster.peers import Peers
from tfgpujob_trainer.contract import config
from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.contract.text import did_you_mean
from tfgpujob_trainer.report.log import say


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """The best value, the step it was found after, and how many evaluations in a row were no better since."""

    value: float | None = None
    step: int | None = None
    waited: int = 0


def judge(found: Found, value: float, step: int, *, minimise: bool, min_delta: float) -> Found:
    """What is best after an evaluation; a value that is not a number is never better."""
    change = np.inf if found.value is None else (found.value - value) * (1 if minimise else -1)
    better = np.isfinite(value) and change > min_delta
    return Found(value=value, step=step) if better else replace(found, waited=found.waited + 1)


class Best:
    """Judges evaluations by `settings`, and keeps the best state of the run through `resume`, a store of its own."""

    def __init__(self, settings: config.Best, resume: Resume, peers: Peers) -> None:
        self._settings, self._resume, self._peers = settings, resume, peers
        self.found = Found()

    @property
    def enough(self) -> bool:
        """Whether training should stop: `patience` evaluations in a row were no better."""
        patience = self._settings.patience
        return patience is not None and self.found.waited >= patience

    def judge(self, values: Mapping[str, float], step: int, state: Mapping[str, Any]) -> str:
        """Look at an evaluation and keep the run if it is the best; a few words for the log.

        `state` is what a checkpoint of this step would say. Every worker must call it. Raises ConfigError if the
        metric is not there.
        """
        monitor = self._settings.monitor
        if monitor is None:
            return ""
        if monitor not in values:
            raise ConfigError(f"trainer.best.monitor: there is no {monitor!r}", did_you_mean(monitor, list(values)))
        minimise = self._settings.mode != "max"
        mine = judge(self.found, values[monitor], step, minimise=minimise, min_delta=self._settings.min_delta)
        self.found = Found(**json.loads(self._peers.from_chief(json.dumps(asdict(mine)).encode())))
        if self.found.step == step:
            self._resume.save(self._peers, step, {**state, "best": self.to_json()}, [])
            return ", the best so far"
        if self.enough:
            say(f"{monitor} was not better than after step {self.found.step} for {self.found.waited} evaluations: done")
        return f", best {self.found.value:.4f} after step {self.found.step}" if self.found.step is not None else ""

    def wait(self) -> None:
        """Return when the best is written."""
        self._resume.wait()

    def restore(self) -> bool:
        """Give the model its best weights, if that is wanted and there are any; whether it was done."""
        if not self._settings.restore or self.found.step is None:
            return False
        self._resume.wait()
        restored = self._resume.restore(self._peers)
        if restored is None:
            say(f"the weights of step {self.found.step}, the best, are not in this directory: keeping the last ones")
            return False
        self.found = replace(Found(**restored[0]["best"]), waited=self.found.waited)
        say(f"back to the weights of step {self.found.step}, with {self._settings.monitor} {self.found.value:.4f}")
        return True

    def to_json(self) -> dict[str, Any]:
        """For the summary, and a checkpoint's state."""
        return asdict(self.found)

    @property
    def judged_by(self) -> list[str | None]:
        """Which values can be compared: those of one metric, judged in one way."""
        return [self._settings.monitor, self._settings.mode or "min"]

    def resumed(self, state: Mapping[str, Any], step: int) -> None:
        """Go on from a checkpoint's state; what was found after that step will be found again."""
        before = state.get("bestJudgedBy", self.judged_by)
        if before == self.judged_by:
            self.found = Found(**state["best"])
        elif self._settings.monitor is not None:
            say(f"trainer.best judges by {self._settings.monitor} now, not by {before[0]}: what was best is forgotten")
        self._resume.forget(self._peers, newer_than=step)
