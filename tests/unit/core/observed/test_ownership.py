"""Whose is an object that has a name of ours?"""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.core import make

from tfgpujob.core.observed.ownership import Ownership, dependent_ownership, pod_ownership
from tfgpujob.core.observed.snapshot import Dependent


@pytest.mark.parametrize(
    ("pod", "ownership"),
    [
        ({}, "ours"),
        ({"attempt": 3}, "ours"),
        ({"attempt": 1}, "old"),
        ({"deleting": True}, "old"),
        ({"owner_uid": "an-earlier-job"}, "old"),
        ({"owner_uid": ""}, "foreign"),
        ({"owner_uid": "", "deleting": True}, "foreign"),
    ],
    ids=str,
)
def test_a_pod(pod: dict[str, Any], ownership: str) -> None:
    assert pod_ownership(make.pod(**{"attempt": 2, **pod}), make.JOB_UID, 2) is Ownership(ownership)


@pytest.mark.parametrize(
    ("owner", "deleting", "ownership"),
    [
        (make.JOB_UID, False, "ours"),
        (make.JOB_UID, True, "old"),
        ("an-earlier-job", False, "old"),
        ("", False, "foreign"),
    ],
)
def test_a_service(owner: str, deleting: bool, ownership: str) -> None:
    service = Dependent("train", "uid", "1", owner, "train" if owner else "", deleting)
    assert dependent_ownership(service, make.JOB_UID) is Ownership(ownership)
    running = dependent_ownership(service, make.JOB_UID, created=True)
    assert running is (Ownership.OURS if owner == make.JOB_UID else Ownership(ownership))


@pytest.mark.parametrize(
    ("attempt", "restart", "ownership"),
    [(2, 1, "ours"), (2, 2, "ours"), (2, 0, "old"), (1, 5, "old"), (3, 0, "ours")],
)
def test_a_pod_of_an_earlier_restart_is_old(attempt: int, restart: int, ownership: str) -> None:
    pod = make.pod(attempt=attempt, replica_restart=restart)
    assert pod_ownership(pod, make.JOB_UID, 2, 1) is Ownership(ownership)
