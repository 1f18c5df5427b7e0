"""Dataclasses from JSON objects with the API's names. Errors name the field and the fix."""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal, TypeVar

from tfgpujob_contract.trainer_config import camel
from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.contract.text import did_you_mean

T = TypeVar("T")


def build(cls: type[T], data: Any, path: str) -> T:
    """The dataclass of that JSON object; raises ConfigError with the field, below `path`, and the fix."""
    if not isinstance(data, Mapping):
        raise ConfigError(f"{path} is {json.dumps(data)}", "it must be an object")
    fields = {camel(f.name): f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    hints = typing.get_type_hints(cls)
    for key in data:
        if key not in fields:
            raise ConfigError(f"{path} has no field {key!r}", did_you_mean(key, list(fields)))
    values = {
        fields[key].name: _value(hints[fields[key].name], value, f"{path}.{key}")
        for key, value in data.items()
        if value is not None
    }
    required = [
        name
        for name, f in fields.items()
        if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    ]
    missing = [name for name in required if fields[name].name not in values]
    if missing:
        raise ConfigError(f"{path}.{missing[0]} is missing", f"add it; {path} needs {', '.join(required)}")
    return cls(**values)


def _value(hint: Any, value: Any, path: str) -> Any:
    if typing.get_origin(hint) in (types.UnionType, typing.Union):  # a Literal makes the latter
        hint = next(arg for arg in typing.get_args(hint) if arg is not types.NoneType)
    if dataclasses.is_dataclass(hint):
        return build(typing.cast("type[Any]", hint), value, path)
    if typing.get_origin(hint) is Literal:
        choices = typing.get_args(hint)
        if value not in choices:
            raise ConfigError(f"{path} is {json.dumps(value)}", did_you_mean(str(value), choices))
        return value
    if typing.get_origin(hint) is tuple:
        if not isinstance(value, list):
            raise ConfigError(f"{path} is {json.dumps(value)}", "it must be a list")
        return tuple(_value(typing.get_args(hint)[0], part, f"{path}[{i}]") for i, part in enumerate(value))
    kind = typing.get_origin(hint) or hint
    wanted = (int, float) if kind is float else (kind,)
    if not isinstance(value, wanted) or (isinstance(value, bool) and kind is not bool):
        names = {int: "a whole number", bool: "true or false", str: "a string", float: "a number"}
        raise ConfigError(f"{path} is {json.dumps(value)}", f"it must be {names.get(kind, 'an object')}")
    return value
