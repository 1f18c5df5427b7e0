"""What is printed while training: a line for people at each epoch, and JSON lines for programs."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tfgpujob_trainer.scalars import Scalars
from tfgpujob_trainer.scoreboard import Scoreboard

_INPUT_BOUND = 0.1
"""Share of the time that is waited for data, from which on something should be done about it."""
_WORTH_SAYING_SECONDS = 1.0


def say(message: str) -> None:
    """One line for people."""
    print(f"tfgpu-train: {message}", flush=True)


@dataclass(slots=True)
class Window:
    """Examples, and the seconds spent in their steps, of which some were waited for input."""

    examples: int = 0
    steps: int = 0
    seconds: float = 0.0
    waited: float = 0.0

    def add(self, examples: int, seconds: float, waited: float) -> None:
        """Count one step."""
        self.steps += 1
        self.examples += examples
        self.seconds += seconds
        self.waited += waited

    @property
    def rate(self) -> float:
        """Examples per second."""
        return round(self.examples / self.seconds, 1) if self.seconds else 0.0

    @property
    def step_seconds(self) -> float:
        """Mean seconds of a step: input wait, and computation with its all-reduce."""
        return float(f"{self.seconds / self.steps:.3g}") if self.steps else 0.0

    @property
    def is_input_bound(self) -> bool:
        """Whether so much time was waited for data that it is worth a sentence."""
        return self.waited >= _WORTH_SAYING_SECONDS and self.input_wait >= _INPUT_BOUND

    @property
    def input_wait(self) -> float:
        """The share of the time that was spent waiting for input, 0 to 1."""
        return round(self.waited / self.seconds, 3) if self.seconds else 0.0


@dataclass(kw_only=True)
class Progress:
    """Knows how far the run is to go, and prints how it goes.

    `input_fix` is what to do when training waits for data.
    """

    steps: int
    epochs: int
    log_every_seconds: float
    input_fix: str
    scoreboard: Scoreboard
    scalars: Scalars | None = None
    total: Window = field(default_factory=Window)
    _epoch: Window = field(default_factory=Window)
    _interval: Window = field(default_factory=Window)
    _printed: float = field(default_factory=time.monotonic)
    _advised: bool = False

    def add(self, examples: int, seconds: float, waited: float) -> None:
        """Count one step."""
        for window in (self.total, self._epoch, self._interval):
            window.add(examples, seconds, waited)

    @property
    def due(self) -> bool:
        """Whether an interval is over."""
        return time.monotonic() - self._printed >= self.log_every_seconds

    def line(self, *, phase: str, step: int, epoch: int, values: Mapping[str, float]) -> None:
        """Print the JSON line of the interval that ends now."""
        state: dict[str, Any] = {
            "phase": phase,
            "step": step,
            "steps": self.steps,
            "epoch": epoch,
            "epochs": self.epochs,
            "loss": _number(values["loss"]),
            "examplesPerSecond": self._interval.rate,
            "inputWait": self._interval.input_wait,
            "stepSeconds": self._interval.step_seconds,
        }
        self.scoreboard.update(**state)
        metrics = {name: _number(value) for name, value in values.items() if name != "loss"}
        print(json.dumps({"tfgpu": "progress", **state, "metrics": metrics}), flush=True)
        if self.scalars is not None:
            speed = {name: state[name] for name in ("examplesPerSecond", "inputWait", "stepSeconds")}
            self.scalars.write("train", step, {**values, **speed, "epoch": epoch})
        self._interval = Window()
        self._printed = time.monotonic()

    def epoch_line(self, *, epoch: int, values: Mapping[str, float], more: str = "") -> None:
        """Print the epoch for people, and start the next."""
        say(
            f"epoch {epoch}/{self.epochs}: {describe(values)}, {self._epoch.rate:.0f} examples/s, "
            f"input wait {self._epoch.input_wait:.0%}{more}"
        )
        if self._epoch.is_input_bound and not self._advised:
            self._advised = True
            say(self.advice(self._epoch))
        self._epoch = Window()

    def evaluated(self, step: int, values: Mapping[str, float]) -> None:
        """Keep what an evaluation of the validation split found."""
        if self.scalars is not None:
            self.scalars.write("validation", step, values)

    def advice(self, window: Window) -> str:
        """What follows from how the time of the steps was spent."""
        return f"input-bound: {window.input_wait:.0%} of the time is waiting for data; {self.input_fix}"


def describe(values: Mapping[str, float]) -> str:
    """`loss 0.1234, accuracy 0.9500`."""
    return ", ".join(f"{name} {value:.4f}" for name, value in values.items())


def _number(value: float) -> float:
    return float(f"{value:.6g}")
