"""Two releases as processes, and the harness's server over HTTP: no pod is restarted, no status lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests import commits
from tests.upgrade import previous
from tests.upgrade.run import Run, in_memory, lost

needs_history = pytest.mark.skipif(not previous.is_there(), reason="a shallow clone: it has no last release")


@needs_history
@pytest.mark.slow
@pytest.mark.deep
def test_an_upgrade_and_a_rollback_restart_no_pod_and_lose_no_status(tmp_path: Path) -> None:
    with in_memory(tmp_path) as ground:
        assert Run(ground, previous.checkout(tmp_path), 12, print).problems() == []


def test_what_a_status_does_not_keep_is_named() -> None:
    before = {"phase": "Running", "conditions": [{"type": "Created", "status": "True"}], "attempt": 2}
    after = {"phase": "Running", "conditions": [{"type": "New", "status": "True"}], "attempt": 1, "goodput": {"x": 1}}
    assert lost(before, before) == []
    assert lost(before, after) == [
        "status.conditions[Created].type: 'Created' became None",
        "status.conditions[Created].status: 'True' became None",
        "status.attempt: 2 became 1",
    ]


@needs_history
@pytest.mark.parametrize("name", previous.DEFINITIONS)
def test_fields_of_the_definition_are_only_added(name: str) -> None:
    """docs/releases.md promises it: a definition that is upgraded drops nothing from a job that is there."""
    before, after = types(previous.definition(name)), types(current(name))
    assert before.items() <= after.items()
    assert "spec.runPolicy.suspend" in before


@needs_history
@pytest.mark.parametrize("name", previous.DEFINITIONS)
def test_no_default_is_added_to_the_definition(name: str) -> None:
    """An API server writes it into every job, and the last release refuses a job with a field that it doesn't know."""
    before, after = defaults(previous.definition(name)), defaults(current(name))
    assert after.items() <= before.items()
    assert before["spec.runPolicy.suspend"] is False


def current(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.load((commits.ROOT / "crds" / name).read_text(), Loader=yaml.CSafeLoader)
    return found


def types(definition: dict[str, Any]) -> dict[str, str]:
    return {path: str(schema.get("type")) for path, schema in fields(definition)}


def defaults(definition: dict[str, Any]) -> dict[str, Any]:
    return {path: schema["default"] for path, schema in fields(definition) if "default" in schema}


def fields(definition: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Path and schema of every field."""
    [version] = definition["spec"]["versions"]
    waiting = [("", version["schema"]["openAPIV3Schema"])]
    while waiting:
        path, schema = waiting.pop()
        yield path, schema
        waiting += [(f"{path}.{key}".lstrip("."), part) for key, part in schema.get("properties", {}).items()]
        items = (schema.get(key) for key in ("items", "additionalProperties"))
        waiting += [(f"{path}[]", part) for part in items if isinstance(part, dict)]
