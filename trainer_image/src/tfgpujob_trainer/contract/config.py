"""Reads the config file, and checks the fields of spec.trainer (spec.py) against each other. Does not import
TensorFlow.

The JSON file uses the names of the API (`globalBatchSize`); the fields are the same names in snake_case. An unknown key
is an error that suggests the nearest known one.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tfgpujob_trainer.contract import json_fields
from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.contract.json_fields import camel
from tfgpujob_trainer.contract.spec import (
    OF_TRAINING,
    Best,
    Checkpoint,
    Code,
    Data,
    Evaluate,
    Output,
    Profile,
    TrainerConfig,
)

_CAPITAL = re.compile("[A-Z]")
_PATH = re.compile(r"\w+(\.\w+)*")


def epochs_between_saves(settings: Checkpoint) -> int | None:
    """Epochs between two saves, each epoch when nothing is set, or None when only steps or time count."""
    return settings.every_epochs or (None if settings.every_steps or settings.every_seconds else 1)


def batch_size(settings: TrainerConfig) -> int:
    """globalBatchSize, which only a plain script leaves out; it is set before such a script trains."""
    assert settings.global_batch_size is not None
    return settings.global_batch_size


def evaluates(settings: Evaluate) -> bool:
    """True if there are evaluations during training."""
    return settings.every_epochs is not None or settings.every_steps is not None


def evaluation_due(settings: Evaluate, *, step: int, epoch: int | None) -> bool:
    """Whether to evaluate after that step; `epoch` is the one that ended with it, if any."""
    by_step = settings.every_steps is not None and step % settings.every_steps == 0
    return by_step or (epoch is not None and settings.every_epochs is not None and epoch % settings.every_epochs == 0)


def to_json(settings: TrainerConfig) -> dict[str, Any]:
    """The config with the API's names and every default."""
    found: dict[str, Any] = json_fields.to_json(settings)
    return found


def _require(ok: bool, message: str, fix: str = "") -> None:
    if not ok:
        raise ConfigError(f"trainer.{message}", fix)


def _check(part: Any, path: str) -> None:
    """Raise ConfigError for invalid values of an object of spec.trainer; `path` is its own."""
    if not isinstance(part, TrainerConfig):
        _check_positive(part, path)
    if rule := _RULES.get(type(part)):
        rule(part)


def _check_positive(part: Any, path: str) -> None:
    for field in dataclasses.fields(part):
        value, least = getattr(part, field.name), field.metadata.get("least")
        if value is not None and least is not None and value < least:
            raise ConfigError(f"{path}.{camel(field.name)} is {value}", "use a whole number of at least 1")


def _check_code(code: Code) -> None:
    given = [name for name in ("config_map", "volume", "image", "git") if getattr(code, name) is not None]
    _require(len(given) <= 1, f"code: both {' and '.join(map(camel, given))} are set", "keep one of them")


def _check_output(output: Output) -> None:
    _require(bool(output.directory), "output.directory is empty", "name a directory, such as /output")
    is_url = output.store is None or "://" in output.store
    _require(is_url, f"output.store is {output.store!r}", "give a URL, such as s3://bucket/folder")


def _check_best(best: Best) -> None:
    _require(best.min_delta >= 0, f"best.minDelta is {best.min_delta}", "use a number of at least 0")
    given = [name for name in ("mode", "patience") if getattr(best, name) is not None]
    _require(
        best.monitor is not None or not given,
        f"best.{given[0] if given else ''} is set and best.monitor is not",
        "name what is judged, such as monitor: loss",
    )
    _require(
        best.monitor is None or best.monitor.endswith("loss") or best.mode is not None,
        f"best.monitor is {best.monitor!r} and best.mode is not set",
        "say mode: max or mode: min",
    )


def _check_data(data: Data) -> None:
    _require(
        data.cache == "none" or data.steps_per_epoch is None,
        f"data.cache is {data.cache}, and with trainer.data.stepsPerEpoch the data has no end",
        "remove one of them",
    )


def _check_profile(profile: Profile) -> None:
    _require(profile.worker >= 0, f"profile.worker is {profile.worker}", "use 0 for the first worker")
    if profile.steps is not None:
        ordered = len(profile.steps) == 2 and 1 <= profile.steps[0] <= profile.steps[1]
        _require(ordered, f"profile.steps is {list(profile.steps)}", "give the first and the last step, such as [5, 8]")


def _check_trainer(config: TrainerConfig) -> None:
    _require(bool(config.entrypoint), "entrypoint is empty", "name a built-in (digits), a module or a file")
    _check_positive(config, "trainer")
    _require(0 <= config.seed < 2**31, f"seed is {config.seed}", "use 0 to 2147483647")
    may_be_script = config.mode == "train" and config.entrypoint.endswith(".py")
    _require(
        config.global_batch_size is not None or may_be_script,
        "globalBatchSize is missing",
        "add it: the examples of one step over all workers together, such as 128",
    )
    if config.mode == "predict":
        _check_predict(config)
        return
    _require(config.predict.model is None, "predict.model is set, but mode is train", "set mode to predict")
    _require(
        config.epochs is None or config.steps is None,
        f"epochs is {config.epochs} and steps is {config.steps}",
        "set one of them",
    )
    _require(
        config.epochs is not None or config.steps is not None or may_be_script,
        "epochs is missing",
        "set epochs, or steps",
    )
    _require(
        config.global_batch_size is None or (config.accumulate or 1) <= config.global_batch_size,
        f"globalBatchSize is {config.global_batch_size} for {config.accumulate} micro-batches",
        "each micro-batch needs at least one row: raise globalBatchSize or lower accumulate",
    )
    _require(
        not config.args or may_be_script,
        f"args is set, and {config.entrypoint} is no script",
        "use params: those go to model() and data()",
    )
    _require(
        not config.new_layers or config.initial_weights is not None,
        "newLayers is set, and initialWeights is not",
        "set initialWeights, or remove newLayers",
    )
    for glob, gpu in config.placement.items():
        _require(_is_whole(gpu), f"placement.{glob} is {json.dumps(gpu)}", "use the number of a GPU, from 0 on")
    for name, weight in config.class_weights.items():
        _require(name.isdecimal(), f"classWeights names {name!r}", 'name classes by their numbers, such as "0"')
        numeric = isinstance(weight, int | float) and not isinstance(weight, bool) and weight >= 0
        _require(numeric, f"classWeights.{name} is {json.dumps(weight)}", "use a number of at least 0")
    _require(
        config.best.monitor is None or evaluates(config.evaluate),
        f"best.monitor is {config.best.monitor!r} and nothing is evaluated while training",
        "set evaluate.everyEpochs or evaluate.everySteps",
    )


def _check_predict(config: TrainerConfig) -> None:
    given = [name for name in ("predict.model", "initialWeights") if _at(config, name) is not None]
    _require(bool(given), "predict.model is missing", "set it, or initialWeights")
    _require(len(given) == 1, "predict.model and initialWeights are both set", "keep one of them")
    for name in OF_TRAINING:
        _require(not is_set(config, name), f"{name} has no meaning under mode predict", "remove it")


_RULES: dict[type, Callable[[Any], None]] = {
    Code: _check_code,
    Output: _check_output,
    Best: _check_best,
    Data: _check_data,
    Profile: _check_profile,
    TrainerConfig: _check_trainer,
}


def _at(config: object, path: str) -> Any:
    """The value of a field by its name in the API."""
    for key in path.split("."):
        config = getattr(config, _CAPITAL.sub(lambda capital: f"_{capital[0].lower()}", key))
    return config


def is_set(config: TrainerConfig, path: str) -> bool:
    """True if the field of that name in the API is set."""
    return _at(config, path) not in (None, (), {}, "none")


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
    return json_fields.build(TrainerConfig, data, "trainer", _check)


def _override(data: dict[str, Any], override: str) -> None:
    path, separator, text = override.partition("=")
    if not separator or not _PATH.fullmatch(path):
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
