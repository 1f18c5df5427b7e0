"""tests/soak/settled.py: the soak's judge notices what an operator has left undone."""

from __future__ import annotations

from typing import Any

import pytest
from tests.soak.settled import unsettled
from tests.soak.stand_in import Life

LIFE = {"job": Life(pods=2, ends_after=1)}


def pods(*phases: str, attempt: int = 1) -> list[dict[str, Any]]:
    labels = {"tfgpu.dev/job-name": "job", "tfgpu.dev/attempt": str(attempt)}
    return [{"metadata": {"labels": labels}, "status": {"phase": phase}} for phase in phases]


def said(there: list[dict[str, Any]], **status: Any) -> list[str]:
    return unsettled(LIFE, [{"metadata": {"name": "job"}, "status": status}], there)


@pytest.mark.parametrize(
    ("there", "status"),
    [
        (pods("Running", "Running"), {"phase": "Running", "attempt": 1}),
        (pods("Running", "Pending"), {"phase": "Starting", "attempt": 1}),
        (pods("Succeeded", "Succeeded"), {"phase": "Succeeded", "attempt": 1}),
        ([], {"phase": "Restarting", "attempt": 2, "retry": {"notBefore": "2999-01-01T00:00:00Z"}}),
    ],
)
def test_nothing_is_left_to_do(there: list[dict[str, Any]], status: dict[str, Any]) -> None:
    assert said(there, **status) == []


@pytest.mark.parametrize(
    ("there", "status", "problem"),
    [
        ([], {}, "has no status"),
        (pods("Running"), {"phase": "Starting", "attempt": 1}, "1 pod is missing"),
        (pods("Running", "Running"), {"phase": "Starting", "attempt": 1}, "all pods run, and the phase is Starting"),
        (pods("Running", "Failed"), {"phase": "Running", "attempt": 1}, "a pod of attempt 1 has failed"),
        (pods("Succeeded", "Succeeded"), {"phase": "Running", "attempt": 1}, "all pods have succeeded"),
        (pods("Running") + pods("Pending", "Pending", attempt=2), {"attempt": 2}, "pods of an attempt before 2"),
        ([], {"attempt": 2, "retry": {"notBefore": "2000-01-01T00:00:00Z"}}, "2 pods are missing"),
    ],
)
def test_what_is_left_undone_is_named(there: list[dict[str, Any]], status: dict[str, Any], problem: str) -> None:
    assert [line.startswith(f"job: {problem}") for line in said(there, **status)] == [True]
