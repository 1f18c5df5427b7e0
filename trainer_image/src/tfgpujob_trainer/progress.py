"""What is printed while training: a line for people at each epoch, and JSON lines for programs."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


def say(message: str) -> None:
    """One line for people."""
    print(f"tfgpu-train: {message}", flush=True)


@dataclass(slots=True)
class Window:
    """Examples, and the seconds spent in their steps, of which some were waited for input."""

    examples: int = 0
    seconds: float = 0.0
    waited: float = 0.0

    def add(self, examples: int, seconds: float, waited: float) -> None:
        """Count one step."""
        self.examples += examples
        self.seconds += seconds
        self.waited += waited

    @property
    def rate(self) -> float:
        """Examples per second."""
        return round(self.examples / self.seconds, 1) if self.seconds else 0.0

    @property
    def input_wait(self) -> float:
        """The share of the time that was spent waiting for input, 0 to 1."""
        return round(self.waited / self.seconds, 3) if self.seconds else 0.0


@dataclass(kw_only=True)
class Progress:
    """Knows how far the run is to go, and prints how it goes."""

    steps: int
    epochs: int
    log_every_seconds: float
    total: Window = field(default_factory=Window)
    _epoch: Window = field(default_factory=Window)
    _interval: Window = field(default_factory=Window)
    _printed: float = field(default_factory=time.monotonic)

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
        record: dict[str, Any] = {
            "tfgpu": "progress",
            "phase": phase,
            "step": step,
            "steps": self.steps,
            "epoch": epoch,
            "epochs": self.epochs,
            "loss": _number(values["loss"]),
            "metrics": {name: _number(value) for name, value in values.items() if name != "loss"},
            "examplesPerSecond": self._interval.rate,
            "inputWait": self._interval.input_wait,
        }
        print(json.dumps(record), flush=True)
        self._interval = Window()
        self._printed = time.monotonic()

    def epoch_line(self, *, epoch: int, values: Mapping[str, float], more: str = "") -> None:
        """Print the epoch for people, and start the next."""
        say(
            f"epoch {epoch}/{self.epochs}: {describe(values)}, {self._epoch.rate:.0f} examples/s, "
            f"input wait {self._epoch.input_wait:.0%}{more}"
        )
        self._epoch = Window()


def describe(values: Mapping[str, float]) -> str:
    """`loss 0.1234, accuracy 0.9500`."""
    return ", ".join(f"{name} {value:.4f}" for name, value in values.items())


def _number(value: float) -> float:
    return float(f"{value:.6g}")
