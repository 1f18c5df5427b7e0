"""Reports of pods are accepted only if a trainer could have sent them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.contract.told import TOLD

from tfgpujob.core.observed.progress_report import Report, parse
from tfgpujob_contract.pod import MAX_PROGRESS


def told(**changes: Any) -> Report | None:
    return parse(json.dumps({**TOLD, **changes}).encode())


def test_all_of_it() -> None:
    found = told(more="from a newer trainer")
    assert found is not None
    assert (found.phase, found.step, found.steps, found.loss, found.idle_seconds) == ("training", 1200, 9000, 0.31, 7)
    assert found.last_checkpoint is not None
    assert found.last_checkpoint.directory == "/output/c"


@pytest.mark.parametrize(
    "changes",
    [
        {"phase": None},
        {"phase": "on\nline"},
        {"phase": "x" * 33},
        {"step": -1},
        {"step": 2**63},
        {"step": "12"},
        {"step": 1.5},
        {"step": True},
        {"loss": float("nan")},
        {"loss": float("inf")},
        {"examplesPerSecond": -1},
        {"inputWait": 1.5},
        {"idleSeconds": -1},
        {"lastCheckpoint": {"step": 1}},
        {"lastCheckpoint": {"step": 1, "directory": "a\u0000b"}},
        {"lastCheckpoint": {"step": 1, "directory": "\ud800"}},
        {"lastCheckpoint": {"step": 1, "directory": "/c", "time": "2026-02-31T00:00:00Z"}},
        {"lastCheckpoint": {"step": 1, "directory": "/c", "time": "yesterday"}},
        {"lastCheckpoint": {"step": 1, "directory": "/c", "seconds": -1}},
        {"lastCheckpoint": {"step": 1, "directory": "/c", "seconds": 2**31}},
    ],
    ids=str,
)
def test_what_does_not_fit_is_no_report(changes: dict[str, Any]) -> None:
    assert told(**changes) is None


@pytest.mark.parametrize("payload", [b"", b"[]", b"null", b"<html>", b"\xff", b"[" * 9000, b" " * (MAX_PROGRESS + 1)])
def test_what_is_no_object_is_no_report(payload: bytes) -> None:
    assert parse(payload) is None
