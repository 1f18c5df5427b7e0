"""The output of a training: a line for people at each epoch, and JSON lines for programs."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tfgpujob_trainer.reporting.gpu_memory import gpu_memory, gpus
from tfgpujob_trainer.reporting.gpu_use import gpu_use
from tfgpujob_trainer.reporting.log import say
from tfgpujob_trainer.reporting.numbers import one_number, rounded
from tfgpujob_trainer.reporting.run_status import RunStatus
from tfgpujob_trainer.reporting.tensorboard_scalars import Scalars
from tfgpujob_trainer.reporting.timing import StepTime, Window, WorkerTimes

SHARES = ("inputWait", "allReduce", "compute")
WRITE_SECONDS = 10.0
"""Seconds between two writes of the curves: a volume may be slow, and an epoch shorter than a second."""


@dataclass(kw_only=True)
class TrainingLog:
    """Prints the progress of a run, and measures what the time of its steps is spent on.

    `input_fix` is the advice when training waits for data, `batch_field` what gives the size of a batch, `workers` how
    fast each worker is. With `one_machine` they share its cores, so there is no advice about a slow worker or the
    network. The curves are written to `series_file`, if any.
    """

    steps: int
    epochs: int
    log_every_seconds: float
    input_fix: str
    run_status: RunStatus
    workers: WorkerTimes
    one_machine: bool = False
    batch_field: str = "trainer.globalBatchSize"
    scalars: Scalars | None = None
    series_file: Path | None = None
    total: Window = field(default_factory=Window)
    _epoch: Window = field(default_factory=Window)
    _interval: Window = field(default_factory=Window)
    _printed: float = field(default_factory=time.monotonic)
    _written: float = float("-inf")
    _steps_here: int = 0

    def __post_init__(self) -> None:
        self.run_status.gpu_use = lambda: gpu_use(gpus())

    def add(self, examples: int, time: StepTime, own_seconds: Sequence[float]) -> None:
        """Add one step; `own_seconds` is what each replica's worker reports for it.

        The first step, which traces and compiles, is dropped as soon as there is another one.
        """
        self._steps_here += 1
        if self._steps_here == 2:
            self.total, self._epoch, self._interval = Window(), Window(), Window()
        for window in (self.total, self._epoch, self._interval):
            window.add(examples, time)
        self.workers.add(time, own_seconds, counts=self._steps_here > 1)

    @property
    def due(self) -> bool:
        """True if an interval is over."""
        return time.monotonic() - self._printed >= self.log_every_seconds

    def line(self, *, phase: str, step: int, epoch: int, values: Mapping[str, Any]) -> None:
        """Print the JSON line of the interval that ends now."""
        state: dict[str, Any] = {
            "phase": phase,
            "step": step,
            "steps": self.steps,
            "epoch": epoch,
            "epochs": self.epochs,
            "loss": rounded(values["loss"]) if "loss" in values else None,
            "examplesPerSecond": self._interval.rate,
            "stepSeconds": self._interval.step_seconds,
            "inputWait": self._interval.input_wait,
            "allReduce": self._interval.all_reduce,
            "compute": self._interval.compute,
            "workerSeconds": self.workers.seconds(),
            "gpuMemoryMiB": gpu_memory(),
            "gpuUsePercent": gpu_use(gpus()),
        }
        self.run_status.update(**state)
        metrics = {name: rounded(value) for name, value in values.items() if name != "loss"}
        print(json.dumps({"tfgpu": "progress", **state, "metrics": metrics}), flush=True)
        speed = {name: state[name] for name in ("stepSeconds", "examplesPerSecond")}
        self.run_status.add_point("train", step, {"loss": state["loss"], **speed, **metrics})
        if time.monotonic() - self._written >= WRITE_SECONDS:
            self._write_series()
        if self.scalars is not None:
            shares = {name: state[name] for name in SHARES}
            self.scalars.write("train", step, {**values, **speed, **shares, "epoch": epoch})
        self._interval = Window()
        self._printed = time.monotonic()

    def epoch_line(self, *, epoch: int, values: Mapping[str, Any], comment: str = "") -> None:
        """Print the epoch for people, with a comment on its values, and start the next."""
        all_reduce = f", all-reduce {self._epoch.all_reduce:.0%}" if self.workers.several else ""
        say(
            f"epoch {epoch}/{self.epochs}: {describe(values)}{comment}, {self._epoch.rate:.0f} examples/s, "
            f"input wait {self._epoch.input_wait:.0%}{all_reduce}"
        )
        if not self.run_status.advised and (advice := self.advice(self._epoch)):
            self.run_status.advised = True
            say(advice)
        self._epoch = Window()

    def evaluated(self, step: int, values: Mapping[str, Any]) -> None:
        """Add the results of an evaluation of the validation split."""
        self.run_status.add_point("validation", step, {name: rounded(value) for name, value in values.items()})
        if self.scalars is not None:
            self.scalars.write("validation", step, values)

    def close(self) -> None:
        """Close the files, once nothing more is added."""
        self._write_series()
        if self.scalars is not None:
            self.scalars.close()

    def resumed(self, step: int) -> None:
        """The run, and its curves, continue after `step`."""
        self.run_status.resume_series(step, self.series_file)

    def _write_series(self) -> None:
        if self.series_file is not None:
            self.run_status.write_series(self.series_file)
            self._written = time.monotonic()

    def advice(self, window: Window) -> str:
        """Advice from what the time of the steps was spent on; empty if there is none."""
        if window.is_input_bound:
            return f"input-bound: {window.input_wait:.0%} of the time is waiting for data; {self.input_fix}"
        if not self.workers.several or self.one_machine or not window.is_communication_bound:
            return ""
        share = f"{window.all_reduce:.0%} of the time is "
        if slow := self.workers.slowest():
            return f"straggler: {share}waiting for {slow}"
        return (
            f"communication-bound: {share}the all-reduce, once an optimizer step; raise {self.batch_field}, "
            "with trainer.accumulate to keep its memory, or use a faster network"
        )


def describe(values: Mapping[str, Any]) -> str:
    """`loss 0.1234, accuracy 0.9500`."""
    return ", ".join(f"{name} {one_number(value):.4f}" for name, value in values.items())
