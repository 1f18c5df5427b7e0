"""The status of a run for GET /progress: one small JSON object. Does not import TensorFlow."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tfgpujob_contract.pod import MAX_PROGRESS
from tfgpujob_trainer.reporting.series import Series


class RunStatus:
    """The last known status of the run. Any thread may read it; None means unknown."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._beaten = time.monotonic()
        self._series = Series()
        self.advised = False
        """Whether it was said what to do about the speed: once, though a script may call fit() several times."""
        self.waits_for_peers: Callable[[], bool] = lambda: False
        self.ledger: Callable[[], dict[str, Any] | None] = lambda: None
        self._state: dict[str, Any] = {
            "phase": "starting",
            "step": None,
            "steps": None,
            "epoch": None,
            "epochs": None,
            "loss": None,
            "examplesPerSecond": None,
            "stepSeconds": None,
            "inputWait": None,
            "allReduce": None,
            "compute": None,
            "workerSeconds": None,
            "waitsFor": None,
            "gpuMemoryMiB": None,
            "gpuUsePercent": None,
            "lastCheckpoint": None,
            "inPlaceRestarts": 0,
            "gang": None,
        }

    def beat(self) -> None:
        """A step, an evaluation batch or a save is done."""
        with self._lock:
            self._beaten = time.monotonic()

    def update(self, **known: Any) -> None:
        """Set values; the names are those of the JSON object."""
        with self._lock:
            self._state.update(known)

    def add_point(self, split: str, step: int, values: Mapping[str, Any]) -> None:
        """Add to the curves of `train` or `validation`."""
        with self._lock:
            self._series.add(split, step, values)

    def resume_series(self, step: int, file: Path | None = None) -> None:
        """Continue the curves after `step`, with those in `file`, if any."""
        with self._lock:
            self._series.resume(step, file)

    def write_series(self, file: Path) -> None:
        """Write the curves to a file."""
        with self._lock:
            self._series.write(file)

    def series(self, first: int) -> bytes:
        """The curves from step `first` on as JSON: see reporting/series.py."""
        with self._lock:
            return self._series.to_json(first)

    def silence(self) -> tuple[str, float]:
        """The phase, and the seconds since the last sign of life."""
        with self._lock:
            return str(self._state["phase"]), time.monotonic() - self._beaten

    def to_json(self) -> bytes:
        """The JSON object; a number that is not finite is null, which every JSON reader can read."""
        with self._lock:
            state = {**self._state, "idleSeconds": int(time.monotonic() - self._beaten)}
        state["waitsForPeers"] = self.waits_for_peers()
        if state["gang"] is None:
            del state["gang"]  # only the leader of a gang that can be resized reports it
        state["ledger"] = self.ledger()
        plain = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in state.items()}
        encoded = json.dumps(plain).encode()
        assert len(encoded) <= MAX_PROGRESS
        return encoded
