"""What Helm makes of the chart, and how the tests look into it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from copy import deepcopy
from functools import cache
from typing import Any

from localcluster import helm

Object = dict[str, Any]


def render(values: Object | None = None, version: str = "v1.34.0", serves: Sequence[str] = ()) -> list[Object]:
    return deepcopy(_render(json.dumps(values), version, tuple(serves)))


@cache
def _render(values: str, version: str, serves: tuple[str, ...]) -> list[Object]:
    """Many tests look at the same objects."""
    given = json.loads(values)
    return helm.template(values=given, release="tfgpu", namespace="ops", kube_version=version, api_versions=serves)


def of(objects: list[Object], kind: str, name: str | None = None) -> Object:
    found = [o for o in objects if o["kind"] == kind and name in {None, o["metadata"]["name"]}]
    assert len(found) == 1, f"{len(found)} of {kind} {name}"
    return found[0]


def kinds(objects: list[Object]) -> set[str]:
    return {o["kind"] for o in objects}


def environment(objects: list[Object]) -> dict[str, str]:
    container = of(objects, "Deployment")["spec"]["template"]["spec"]["containers"][0]
    return {variable["name"]: variable.get("value", "from the pod") for variable in container["env"]}


def rights(rules: list[Object]) -> set[tuple[str, str, str, str]]:
    return {
        (group, resource, verb, name)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        for name in rule.get("resourceNames", [""])
    }


def leaves(prefix: str, values: Object) -> list[tuple[str, Any]]:
    """The values that are no table of values, by their path, with their defaults."""
    found: list[tuple[str, Any]] = []
    for key, value in values.items():
        name = f"{prefix}{key}"
        found += leaves(f"{name}.", value) if isinstance(value, dict) and value else [(name, value)]
    return found
