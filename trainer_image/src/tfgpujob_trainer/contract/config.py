"""`spec.trainer` as the trainer reads it: frozen values that check themselves. Imports no TensorFlow.

The JSON file uses the names of the API (`globalBatchSize`); the fields here are the same names in
snake_case. An unknown key is an error with the nearest known one.
"""

from __future__ import annotations

import json
import re
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.contract.json_fields import build, camel, to_json


def _require(ok: bool, message: str, fix: str = "") -> None:
    if not ok:
        raise ConfigError(f"trainer.{message}", fix)


@dataclass(frozen=True, kw_only=True, slots=True)
class ConfigMapCode:
    """Code from a ConfigMap that the operator mounts at the code directory."""

    name: str


@dataclass(frozen=True, kw_only=True, slots=True)
class VolumeCode:
    """Code from a volume claim that the operator mounts at the code directory."""

    claim_name: str
    sub_path: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Code:
    """Where the code directory comes from; the operator acts on it, the trainer only reads the directory."""

    config_map: ConfigMapCode | None = None
    volume: VolumeCode | None = None
    image: str | None = None

    def __post_init__(self) -> None:
        given = [name for name in ("config_map", "volume", "image") if getattr(self, name) is not None]
        _require(len(given) <= 1, f"code: both {' and '.join(map(camel, given))} are set", "keep one of them")


@dataclass(frozen=True, kw_only=True, slots=True)
class Output:
    """Where checkpoints/, model.keras and run.json go, and the URL of an object store that gets a copy."""

    directory: str = "/output"
    claim: str | None = None
    store: str | None = None

    def __post_init__(self) -> None:
        _require(bool(self.directory), "output.directory is empty", "name a directory, such as /output")
        is_url = self.store is None or "://" in self.store
        _require(is_url, f"output.store is {self.store!r}", "give a URL, such as s3://bucket/folder")


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """When to save (steps, epochs, or both; each epoch when neither is set) and how many to keep."""

    every_steps: int | None = None
    every_epochs: int | None = None
    keep: int = 3

    def __post_init__(self) -> None:
        _positive(self, "checkpoint", "every_steps", "every_epochs", "keep")

    def epochs_between(self) -> int | None:
        """Epochs between two saves, or None when only steps count."""
        return self.every_epochs or (None if self.every_steps else 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluate:
    """Evaluation of the `validation` split while training; the `test` split is always evaluated at the end."""

    every_epochs: int | None = None
    every_steps: int | None = None

    def __post_init__(self) -> None:
        _positive(self, "evaluate", "every_epochs", "every_steps")

    def due(self, *, step: int, epoch: int | None) -> bool:
        """Whether to evaluate after that step, with which that epoch ended if it is one."""
        by_step = self.every_steps is not None and step % self.every_steps == 0
        return by_step or (epoch is not None and self.every_epochs is not None and epoch % self.every_epochs == 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Best:
    """Which evaluation is the best: its weights are kept, and training may stop when none is better. Off without
    monitor."""

    monitor: str | None = None
    mode: Literal["min", "max"] | None = None
    min_delta: float = 0.0
    patience: int | None = None
    restore: bool = True

    def __post_init__(self) -> None:
        _positive(self, "best", "patience")
        _require(self.min_delta >= 0, f"best.minDelta is {self.min_delta}", "use a number of at least 0")
        given = [name for name in ("mode", "patience") if getattr(self, name) is not None]
        _require(
            self.monitor is not None or not given,
            f"best.{given[0] if given else ''} is set and best.monitor is not",
            "name what is judged, such as monitor: loss",
        )
        _require(
            self.monitor is None or self.monitor.endswith("loss") or self.mode is not None,
            f"best.monitor is {self.monitor!r} and best.mode is not set",
            "say mode: max or mode: min",
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Data:
    """How the data is read: what is kept of it, how it is shuffled where it has no index, how far ahead it is read."""

    cache: Literal["none", "memory", "disk"] = "none"
    shuffle_window: int = 10_000
    steps_per_epoch: int | None = None
    parallel_reads: int = 4

    def __post_init__(self) -> None:
        _positive(self, "data", "shuffle_window", "steps_per_epoch", "parallel_reads")
        _require(
            self.cache == "none" or self.steps_per_epoch is None,
            f"data.cache is {self.cache}, and with trainer.data.stepsPerEpoch the data has no end",
            "remove one of them",
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Export:
    """What is written at the end beside model.keras."""

    saved_model: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Predict:
    """Mode predict: the model to load (or else model() with initialWeights), and the rows behind one output file."""

    model: str | None = None
    part_rows: int = 8192

    def __post_init__(self) -> None:
        _positive(self, "predict", "part_rows")


@dataclass(frozen=True, kw_only=True, slots=True)
class Profile:
    """TensorFlow's profiler: from the first to the last of two steps, on one worker. Off without steps."""

    steps: tuple[int, ...] | None = None
    worker: int = 0

    def __post_init__(self) -> None:
        _require(self.worker >= 0, f"profile.worker is {self.worker}", "use 0 for the first worker")
        if self.steps is not None:
            ordered = len(self.steps) == 2 and 1 <= self.steps[0] <= self.steps[1]
            _require(
                ordered, f"profile.steps is {list(self.steps)}", "give the first and the last step, such as [5, 8]"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Watchdog:
    """Seconds until the first step is done, and seconds that one step, batch or save may take."""

    startup_seconds: int = 600
    step_seconds: int = 300

    def __post_init__(self) -> None:
        _positive(self, "watchdog", "startup_seconds", "step_seconds")


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainerConfig:
    """What to train, on how much data at a time, for how long, and what to keep of it."""

    entrypoint: str
    global_batch_size: int
    mode: Literal["train", "predict"] = "train"
    predict: Predict = field(default_factory=Predict)
    params: Mapping[str, Any] = field(default_factory=dict)
    accumulate: int | None = None
    precision: Literal["float32", "mixed_bfloat16", "mixed_float16"] | None = None
    jit: Literal["none", "replica"] = "none"
    all_reduce: Literal["float16"] | None = None
    recompute: tuple[str, ...] = ()
    placement: Mapping[str, int] = field(default_factory=dict)
    class_weights: Mapping[str, float] = field(default_factory=dict)
    epochs: int | None = None
    steps: int | None = None
    seed: int = 0
    deterministic: bool = False
    remainder: Literal["carry", "drop"] = "carry"
    data: Data = field(default_factory=Data)
    profile: Profile = field(default_factory=Profile)
    initial_weights: str | None = None
    export: Export = field(default_factory=Export)
    code: Code = field(default_factory=Code)
    output: Output = field(default_factory=Output)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    evaluate: Evaluate = field(default_factory=Evaluate)
    best: Best = field(default_factory=Best)
    log_every_seconds: int = 10
    watchdog: Watchdog = field(default_factory=Watchdog)

    def __post_init__(self) -> None:
        _require(bool(self.entrypoint), "entrypoint is empty", "name a built-in (digits), a module or a file")
        _positive(self, "", "global_batch_size", "accumulate", "epochs", "steps", "log_every_seconds")
        _require(0 <= self.seed < 2**31, f"seed is {self.seed}", "use 0 to 2147483647")
        if self.mode == "predict":
            self._check_predict()
            return
        _require(self.predict.model is None, "predict.model is set, but mode is train", "set mode to predict")
        _require(
            self.epochs is None or self.steps is None,
            f"epochs is {self.epochs} and steps is {self.steps}",
            "set one of them",
        )
        _require(self.epochs is not None or self.steps is not None, "epochs is missing", "set epochs, or steps")
        _require(
            (self.accumulate or 1) <= self.global_batch_size,
            f"globalBatchSize is {self.global_batch_size} for {self.accumulate} micro-batches",
            "each micro-batch needs at least one row: raise globalBatchSize or lower accumulate",
        )
        for glob, gpu in self.placement.items():
            _require(_is_whole(gpu), f"placement.{glob} is {json.dumps(gpu)}", "use the number of a GPU, from 0 on")
        for name, weight in self.class_weights.items():
            _require(name.isdecimal(), f"classWeights names {name!r}", 'name classes by their numbers, such as "0"')
            numeric = isinstance(weight, int | float) and not isinstance(weight, bool) and weight >= 0
            _require(numeric, f"classWeights.{name} is {json.dumps(weight)}", "use a number of at least 0")
        judged = self.best.monitor is None or self.evaluate.every_epochs or self.evaluate.every_steps
        _require(
            bool(judged),
            f"best.monitor is {self.best.monitor!r} and nothing is evaluated while training",
            "set evaluate.everyEpochs or evaluate.everySteps",
        )

    def _check_predict(self) -> None:
        given = [name for name in ("predict.model", "initialWeights") if _at(self, name) is not None]
        _require(bool(given), "predict.model is missing", "set it, or initialWeights")
        _require(len(given) == 1, "predict.model and initialWeights are both set", "keep one of them")
        for name in OF_TRAINING:
            _require(
                _at(self, name) in (None, (), {}, "none"), f"{name} has no meaning under mode predict", "remove it"
            )

    def to_json(self) -> dict[str, Any]:
        """The config in the API's names, with every default filled in."""
        return typing.cast("dict[str, Any]", to_json(self))


OF_TRAINING = (
    "epochs",
    "steps",
    "accumulate",
    "jit",
    "allReduce",
    "recompute",
    "placement",
    "classWeights",
    "data.stepsPerEpoch",
    "profile.steps",
    "checkpoint.everySteps",
    "checkpoint.everyEpochs",
    "evaluate.everyEpochs",
    "evaluate.everySteps",
    "best.monitor",
)


def _at(config: object, path: str) -> Any:
    """The value of a field by its name in the API."""
    for key in path.split("."):
        config = getattr(config, re.sub("[A-Z]", lambda capital: f"_{capital[0].lower()}", key))
    return config


def _positive(owner: object, prefix: str, *names: str) -> None:
    for name in names:
        value = getattr(owner, name)
        path = ".".join(part for part in (prefix, camel(name)) if part)
        _require(value is None or value >= 1, f"{path} is {value}", "use a whole number of at least 1")


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def load(path: Path, overrides: Sequence[str] = ()) -> TrainerConfig:
    """Read the JSON file and apply `a.b=c` overrides, whose values are JSON or else plain strings.

    Raises ConfigError for whatever is wrong with them.
    """
    try:
        data = json.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}", "name the file with --config") from error
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON: {error}") from error
    _require(isinstance(data, dict), f"{path} holds a {type(data).__name__}", "it must be a JSON object")
    for override in overrides:
        _override(data, override)
    return parse(data)


def parse(data: Mapping[str, Any]) -> TrainerConfig:
    """Build the config from JSON values; raises ConfigError naming the field and the fix."""
    return build(TrainerConfig, data, "trainer")


def _override(data: dict[str, Any], override: str) -> None:
    path, separator, text = override.partition("=")
    if not separator or not re.fullmatch(r"\w+(\.\w+)*", path):
        raise ConfigError(f"--set {override!r} is not of the form a.b=c", "such as --set params.units=64")
    *parents, last = path.split(".")
    for parent in parents:
        data = data.setdefault(parent, {})
        if not isinstance(data, dict):
            raise ConfigError(f"--set {override!r}: {parent} is not an object")
    try:
        data[last] = json.loads(text)
    except ValueError:
        data[last] = text
