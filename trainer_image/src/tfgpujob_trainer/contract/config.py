"""Reads the config file into the contract's dataclasses. Does not import TensorFlow.

The operator has refused what breaks a rule of the API, so no rule is repeated here. The JSON file uses the names of the
API (`globalBatchSize`); the fields are the same names in snake_case. An unknown key is an error that suggests the
nearest known one.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tfgpujob_contract.trainer_config import Checkpoint, Evaluate, TrainerConfig
from tfgpujob_trainer.contract import json_fields
from tfgpujob_trainer.contract.exits import ConfigError

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


def is_divided(settings: TrainerConfig) -> bool:
    """True if the model of a script or module is divided over the GPUs, without a line of its code."""
    return settings.mesh is not None or settings.shard is not None


def _at(config: object, path: str) -> Any:
    """The value of a field by its name in the API."""
    for key in path.split("."):
        config = getattr(config, _CAPITAL.sub(lambda capital: f"_{capital[0].lower()}", key))
    return config


def is_set(config: TrainerConfig, path: str) -> bool:
    """True if the field of that name in the API is set."""
    return _at(config, path) not in (None, (), {}, "none")


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
    if not isinstance(data, dict):
        raise ConfigError(f"{path} holds a {type(data).__name__}", "it must be a JSON object")
    for override in overrides:
        _override(data, override)
    return parse(data)


def parse(data: Mapping[str, Any]) -> TrainerConfig:
    """Build the config from JSON values; raises ConfigError naming the field and the fix."""
    return json_fields.build(TrainerConfig, data, "trainer")


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


def parser() -> argparse.ArgumentParser:
    """The command line, which the training process has too."""
    result = argparse.ArgumentParser(
        prog="tfgpu-train", description="Checks the configuration, then trains in child processes."
    )
    result.add_argument("--config", type=Path, required=True, metavar="FILE", help="spec.trainer as JSON")
    result.add_argument(
        "--set", action="append", default=[], metavar="A.B=C", help="override one field, such as params.units=32"
    )
    return result
