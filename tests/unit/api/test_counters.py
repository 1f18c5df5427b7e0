"""Counters of a job that works for years: what the status holds, what the CRD takes, and what the tool shows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tfgpujob.api.base import MAX_INT32, MAX_INT64, quantity
from tfgpujob.api.crd import root_schema
from tfgpujob.api.status import JobStatus
from tfgpujob.cli.output import size
from tfgpujob.core.observed import progress_report
from tfgpujob.core.observed.snapshot import Kind
from tfgpujob.describe.page import progress_line
from tfgpujob.shell.store import Key, Store
from tfgpujob.units import duration

GROW_FOR_YEARS = {
    "status.gpuTime.seconds",
    "status.lastCheckpoint.step",
    "status.observedGeneration",
    "status.progress.epoch",
    "status.progress.remainingSeconds",
    "status.progress.step",
    "status.progress.totalEpochs",
    "status.progress.totalSteps",
    "spec.trainer.steps",
    "spec.runPolicy.activeDeadlineSeconds",
}
"""2^31 steps of a small model are three weeks."""


def integers(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every integer of a schema by its path."""
    if schema.get("type") == "integer":
        yield path, schema
    for name, part in (schema.get("properties") or {}).items():
        yield from integers(part, f"{path}.{name}" if path else name)
    if isinstance(schema.get("items"), dict):
        yield from integers(schema["items"], f"{path}[]")
    if isinstance(schema.get("additionalProperties"), dict):
        yield from integers(schema["additionalProperties"], f"{path}.*")


def served() -> dict[str, dict[str, Any]]:
    return dict(integers(root_schema(cel=True)))


def test_what_grows_for_years_has_64_bits() -> None:
    found = served()
    assert {path for path in GROW_FOR_YEARS if found[path]["format"] != "int64"} == set()


def test_no_integer_wraps() -> None:
    """One of 32 bits has a maximum: the server refuses what is more, and keeps what was."""
    for path, schema in served().items():
        most = {"int32": MAX_INT32, "int64": MAX_INT64}[schema["format"]]
        assert schema.get("maximum", MAX_INT64 if schema["format"] == "int64" else None) is not None, path
        assert schema.get("maximum", most) <= most, path


@pytest.mark.parametrize("step", [2**31, 2**32 + 1, 2**53 + 1, 2**63 - 1])
def test_a_step_beyond_31_bits_is_kept_to_the_last_digit(step: int) -> None:
    told = progress_report.parse(f'{{"phase": "training", "step": {step}, "steps": {step}, "epoch": {step}}}'.encode())
    assert told is not None
    assert (told.step, told.steps, told.epoch) == (step, step, step)
    status = JobStatus.model_validate(
        {"progress": {"step": step, "totalSteps": step}, "lastCheckpoint": {"step": step}}
    )
    assert status.progress is not None
    assert status.progress.step == step
    assert progress_line({"step": step, "totalSteps": step, "percent": 100}) == f"step {step}/{step} (100 %)"


@pytest.mark.parametrize("version", ["1", str(2**31), str(2**63), str(2**64 + 5), "9" * 40])
def test_a_version_is_as_long_as_the_server_likes(version: str) -> None:
    def job(version: str) -> dict[str, Any]:
        return {"metadata": {"namespace": "d", "name": "a", "uid": "u", "resourceVersion": version}}

    store = Store()
    assert store.put(Kind.JOB, job(version)) == Key("d", "a")
    assert store.put(Kind.JOB, job(str(int(version) - 1))) is None, "an older one"
    assert store.put(Kind.JOB, job(str(int(version) + 1))) == Key("d", "a")
    assert store.put(Kind.JOB, job("opaque-7f")) == Key("d", "a"), "of another kind of server: the last one wins"


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1500m", 1.5),
        ("250000000n", 0.25),
        ("123Ki", 123 * 1024),
        ("9007199254740993", 9007199254740992.0),
        ("12e6", 12e6),
        ("1E3", 1000),
        ("3P", 3e15),
        ("2Pi", 2 * 2.0**50),
        ("5E", 5e18),
        ("16Ei", 2.0**64),
        ("none", 0),
    ],
)
def test_quantities_of_any_size_are_read(text: str, number: float) -> None:
    assert quantity(text) == number


def test_large_amounts_are_shown_in_large_units() -> None:
    assert [size(2.0**n) for n in (30, 40, 50, 60, 64)] == ["1 GiB", "1 TiB", "1 PiB", "1 EiB", "16 EiB"]
    assert duration(2**31) == "24855d03h"
