"""The status of a run for GET /progress: one small JSON object. Does not import TensorFlow."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tfgpujob_contract.phases import EVALUATING, SAVING, TRAINING
from tfgpujob_contract.pod import MAX_PROGRESS
from tfgpujob_trainer.reporting.series import Series

MOST_UNSEEN_SECONDS = 120.0
"""The longest time between two samples of the GPUs' use in which they may count as idle."""


class RunStatus:
    """The last known status of the run. Any thread may read it; None means unknown."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._beaten = time.monotonic()
        self._series = Series()
        self.advised = False
        """Whether it was said what to do about the speed: once, though a script may call fit() several times."""
        self.waits_for_peers: Callable[[], bool] = lambda: False
        self.gpu_use: Callable[[], Sequence[int] | None] = lambda: None
        """The utilization of the task's GPUs now."""
        self._gpus_used = self._gpus_sampled = self._beaten
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
            "gpuIdleSeconds": None,
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
        use = self.gpu_use()
        with self._lock:
            self._sampled(use)
            state = {**self._state, "idleSeconds": int(time.monotonic() - self._beaten)}
        state["waitsForPeers"] = self.waits_for_peers()
        if state["gang"] is None:
            del state["gang"]  # only the leader of a gang that can be resized reports it
        state["ledger"] = self.ledger()
        plain = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in state.items()}
        encoded = json.dumps(plain).encode()
        assert len(encoded) <= MAX_PROGRESS
        return encoded

    def _sampled(self, use: Sequence[int] | None) -> None:
        """GPUs are idle while no sample finds them in use, which says nothing of a time without samples."""
        now, trains = time.monotonic(), self._state["phase"] in {TRAINING, EVALUATING, SAVING}
        if use is None or any(use) or not trains or now - self._gpus_sampled > MOST_UNSEEN_SECONDS:
            self._gpus_used = now
        self._gpus_sampled = now
        if use is not None:
            self._state["gpuUsePercent"] = use
        self._state["gpuIdleSeconds"] = None if use is None else int(now - self._gpus_used)
