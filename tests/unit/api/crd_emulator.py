"""What an API server does with an object and a CRD: unknown fields, nulls, defaults, the schema, then CEL.

In the order and with the meaning of Kubernetes; CEL is run by cel-python. Only what the schema of TFGPUJob uses.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import celpy

from tfgpujob.api.base import PRESERVE
from tfgpujob.api.structural import Schema

_OLD = "oldSelf"
"""A rule that names it is asked on an update alone."""
TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "number": (int, float),
    "integer": (int,),
    "boolean": (bool,),
}


@dataclass(frozen=True)
class Refused:
    field: str
    message: str
    rule: str = ""
    """The CEL expression; empty when the schema refused it."""


def admit(root: Schema, obj: Mapping[str, Any]) -> list[Refused]:
    """Why the API server refuses the object; empty when it stores it."""
    obj = copy.deepcopy(dict(obj))
    unknown = [Refused(path, "unknown field") for path in _unknown(root, obj, "")]
    _complete(root, obj)
    nameless = [] if obj["metadata"].get("name") else [Refused("metadata.name", "Required")]
    refused = nameless + unknown + list(_schema(root, obj, ""))
    return refused or list(_cel(root, obj, ""))


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _below(schema: Schema, value: Any, path: str) -> Iterator[tuple[Schema, Any, str]]:
    if isinstance(value, dict):
        for key, part in value.items():
            below = schema.get("properties", {}).get(key) or schema.get("additionalProperties")
            if below is not None:
                yield below, part, _join(path, key)
    elif isinstance(value, list):
        for index, part in enumerate(value):
            yield schema["items"], part, f"{path}[{index}]"


def _unknown(schema: Schema, value: Any, path: str) -> Iterator[str]:
    closed = not schema.get(PRESERVE) and "additionalProperties" not in schema and path != "metadata"
    if isinstance(value, dict) and closed and schema.get("type") == "object":
        yield from (_join(path, key) for key in value if key not in schema.get("properties", {}))
    for below in _below(schema, value, path):
        yield from _unknown(*below)


def _complete(schema: Schema, value: Any) -> None:
    """Takes out nulls where the schema doesn't allow them, and puts in defaults."""
    if isinstance(value, dict):
        for key, part in schema.get("properties", {}).items():
            if key in value and value[key] is None:
                del value[key]
            if key not in value and "default" in part:
                value[key] = copy.deepcopy(part["default"])
    for below, part, _ in _below(schema, value, ""):
        _complete(below, part)


def _schema(schema: Schema, value: Any, path: str) -> Iterator[Refused]:
    kind = schema.get("type")
    if schema.get("x-kubernetes-int-or-string"):
        kind_ok = isinstance(value, int | str) and not isinstance(value, bool)
    else:
        kind_ok = isinstance(value, TYPES[str(kind)]) and (kind == "boolean" or not isinstance(value, bool))
    if not kind_ok:
        yield Refused(path, f"must be of type {kind}")
        return
    yield from (Refused(path, problem) for problem in _bounds(schema, value))
    if isinstance(value, dict):
        yield from (Refused(_join(path, key), "Required") for key in schema.get("required", []) if key not in value)
    for below in _below(schema, value, path):
        yield from _schema(*below)


def _in_range(schema: Schema, value: float) -> bool:
    bits = 31 if schema.get("format") == "int32" else 63
    return bool(schema.get("minimum", -(2**63)) <= value <= min(schema.get("maximum", 2**63 - 1), 2**bits - 1))


def _bounds(schema: Schema, value: Any) -> Iterator[str]:
    if "enum" in schema and value not in schema["enum"]:
        yield "Unsupported value"
    if isinstance(value, str):
        if not schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", 2**31):
            yield "length"
        if "pattern" in schema and not re.search(schema["pattern"], value):
            yield "pattern"
    if isinstance(value, int | float) and not isinstance(value, bool) and not _in_range(schema, value):
        yield "range"
    if isinstance(value, list) and len(value) > schema.get("maxItems", 2**31):
        yield "too many items"
    if isinstance(value, list) and len(value) < schema.get("minItems", 0):
        yield "too few items"
    if isinstance(value, dict) and len(value) > schema.get("maxProperties", 2**31):
        yield "too many properties"


def edit(root: Schema, old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Refused]:
    """Why the API server refuses to replace the one object by the other, both of which it would store."""
    before, after = copy.deepcopy(dict(old)), copy.deepcopy(dict(new))
    for obj in (before, after):
        _complete(root, obj)
    return [
        Refused(f"spec.{validation['fieldPath'].lstrip('.')}", validation["message"], validation["rule"])
        for validation in root["properties"]["spec"]["x-kubernetes-validations"]
        if _OLD in validation["rule"] and not holds(validation["rule"], after["spec"], before["spec"])
    ]


def _cel(schema: Schema, value: Any, path: str) -> Iterator[Refused]:
    for validation in schema.get("x-kubernetes-validations", ()):
        if _OLD not in validation["rule"] and not holds(validation["rule"], value):
            yield Refused(path + validation.get("fieldPath", ""), validation["message"], validation["rule"])
    for below in _below(schema, value, path):
        yield from _cel(*below)


def holds(rule: str, value: Any, old: Any = None) -> bool:
    return _holds(rule, json.dumps(_read(rule, "self", value)), json.dumps(_read(rule, _OLD, old)))


def _read(rule: str, name: str, value: Any) -> Any:
    """The value with no more than the fields that the rule names."""
    return _only(_paths(rule, name), value)


def _only(paths: frozenset[tuple[str, ...]], value: Any) -> Any:
    if () in paths or not isinstance(value, dict):
        return value
    below = {key: frozenset(path[1:] for path in paths if path[0] == key) for key in value}
    return {key: _only(found, value[key]) for key, found in below.items() if found}


@cache
def _paths(rule: str, name: str) -> frozenset[tuple[str, ...]]:
    """`self.a.b.size()` reads all of a.b."""
    found = re.findall(rf"\b{name}\b((?:\.\w+\b(?!\())*)", rule)
    return frozenset(tuple(path.split(".")[1:]) for path in found)


@cache
def _holds(rule: str, value: str, old: str) -> bool:
    """By text: most cases differ in fields that the rule does not read, and cel-python takes milliseconds for each."""
    given = {"self": celpy.json_to_cel(json.loads(value)), _OLD: celpy.json_to_cel(json.loads(old))}
    return bool(_program(rule).evaluate(given))


@cache
def _program(rule: str) -> Any:
    environment = celpy.Environment()
    return environment.program(environment.compile(rule))
