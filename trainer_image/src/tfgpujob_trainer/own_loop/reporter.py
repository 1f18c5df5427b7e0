"""Steps that a training loop reports: to /progress at once, to the log periodically."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from tfgpujob_contract.phases import TRAINING
from tfgpujob_trainer.reporting.run_status import RunStatus

LOG_SECONDS = 10.0
READ_SECONDS = 1.0
"""Reading a number from a device waits for the step that computes it."""


class Reporter:
    """Reports the progress of the loop."""

    def __init__(self, run_status: RunStatus, now: Callable[[], float] = time.monotonic) -> None:
        self._run_status, self._now = run_status, now
        self._read = self._logged = float("-inf")
        self._since: tuple[float, int] | None = None
        self._state: dict[str, Any] = {}

    def report(
        self, counted: Mapping[str, int | None], loss: Any, examples: int | None, metrics: Mapping[str, Any]
    ) -> None:
        """See library.py."""
        now, step = self._now(), int(counted["step"] or 0)
        last = step == counted["steps"]
        self._state.update({name: int(value) for name, value in counted.items() if value is not None})
        if last or now - self._read >= READ_SECONDS:
            self._read = now
            self._state["loss"] = None if loss is None else float(loss)
        self._run_status.beat()
        self._run_status.update(phase=TRAINING, **self._state)
        if not last and now - self._logged < LOG_SECONDS:
            return
        self._speed(now, step, examples)
        self._logged = now
        self._run_status.update(**self._state)
        numbers = {name: float(value) for name, value in metrics.items()}
        shown = {name: self._state.get(name) for name in ("loss", "stepSeconds", "examplesPerSecond")}
        self._run_status.add_point("train", step, {**shown, **numbers})
        print(json.dumps({"tfgpu": "progress", "phase": TRAINING, **self._state, "metrics": numbers}), flush=True)

    def _speed(self, now: float, step: int, examples: int | None) -> None:
        """Seconds and examples of a step since the previous line, without the first step, which traces."""
        if self._since is not None and step > self._since[1]:
            seconds = (now - self._since[0]) / (step - self._since[1])
            self._state["stepSeconds"] = seconds
            self._state["examplesPerSecond"] = examples / seconds if examples and seconds else None
        self._since = now, step
