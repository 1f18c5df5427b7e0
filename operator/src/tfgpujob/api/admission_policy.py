"""The host gate as CEL, for a ValidatingAdmissionPolicy: what `rules/host.py` refuses, refused at `kubectl apply`.

`make crds` writes it into the chart. Each expression is made from a row in the table of the rules.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tfgpujob.api.invalid import Invalid
from tfgpujob.api.rules.host import (
    ANNOTATIONS,
    ASK,
    CONTAINERS,
    CONTROLS,
    Control,
    NotBeginning,
    NotNamed,
    NotOneOf,
    OneOf,
)
from tfgpujob.names import Role

_TEMPLATE = "spec.replicaSpecs.*.template"


def policy() -> dict[str, Any]:
    """The parts of the policy's spec that are generated. A null counts as absent, as in the rules."""
    roles = "object.spec.replicaSpecs"
    return {
        "variables": [
            {
                "name": "templates",
                "expression": f"!has({roles}) || {roles} == null ? [] : {json.dumps([str(role) for role in Role])}"
                f".filter(r, r in {roles} && {roles}[r] != null && {_there(f'{roles}[r].template')})"
                f".map(r, {roles}[r].template)",
            },
            {"name": "specs", "expression": f"variables.templates.filter(t, {_there('t.spec')}).map(t, t.spec)"},
            {
                "name": "annotations",
                "expression": f"variables.templates.filter(t, {_there('t.metadata')} && "
                f"{_there('t.metadata.annotations')}).map(t, t.metadata.annotations)",
            },
        ],
        "validations": [{"expression": expression, "message": str(invalid)} for expression, invalid in _validations()],
    }


def _validations() -> Iterator[tuple[str, Invalid]]:
    for control in CONTROLS:
        for path in control.paths:
            field = path.replace("container.", "containers.*.").replace(".*", "[*]")
            yield f"variables.specs.all(s, {_of_pod(path, control)})", _invalid(f"{_TEMPLATE}.spec.{field}", control)
    for prefix, (what, passing) in ANNOTATIONS.items():
        exact = OneOf(tuple(value for value in passing if not value.endswith("/"))).cel("a[k]")
        begins = " || ".join(f"a[k].startsWith({json.dumps(value)})" for value in passing if value.endswith("/"))
        expression = (
            f"variables.annotations.all(a, a.all(k, !k.startsWith({json.dumps(prefix)}) || {exact} || {begins}))"
        )
        field = f"{_TEMPLATE}.metadata.annotations[{prefix}*]"
        yield expression, Invalid(field, f"takes a container out of {what}", f"remove it, {ASK}")
    priority = ["runPolicy", "schedulingPolicy", "priorityClass"]
    system = CONTROLS[-1]
    yield _passes("object.spec", priority, system.allowed), _invalid(f"spec.{'.'.join(priority)}", system)


def _invalid(field: str, control: Control) -> Invalid:
    return Invalid(field, control.problem, f"{control.fix}, {ASK}")


def _of_pod(path: str, control: Control) -> str:
    """Whether the pod spec `s` passes."""
    first, _, rest = path.partition(".")
    if first != "container":
        return _passes("s", path.split("."), control.allowed)
    passes = _passes("c", rest.split("."), control.allowed)
    return f"{json.dumps(CONTAINERS)}.all(k, !(k in s) || s[k] == null ? true : s[k].all(c, {passes}))"


def _passes(value: str, keys: list[str], allowed: OneOf | NotOneOf | NotBeginning | NotNamed) -> str:
    if not keys:
        return allowed.cel(value)
    if keys[0] == "*":
        return f"{value}.all(i, {_passes('i', keys[1:], allowed)})"
    below = f"{value}.{keys[0]}"
    return f"(!has({below}) || {below} == null ? true : {_passes(below, keys[1:], allowed)})"


def _there(value: str) -> str:
    return f"has({value}) && {value} != null"
