"""The trainer's exit codes (tfgpujob_trainer/contract/exits.py), as the operator's core classifies them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.contract.sides import CONFIG, job, trainer

from tfgpujob.core.observed.snapshot import Kind, Pod, Snapshot
from tfgpujob.core.observed.trim import trim_dependent, trim_pod
from tfgpujob.core.reconcile import reconcile

AGREED = {
    "DONE": (0, "Starting"),
    "FAILED": (1, "Failed"),
    "BAD_CONFIG": (2, "Failed"),
    "OUT_OF_MEMORY": (70, "Failed"),
    "FENCED": (71, "Failed"),
    "LIMIT_AT_START": (72, "Failed"),
    "STOPPED": (143, "Restarting"),
    "PEER_FAILURE": (160, "Restarting"),
    "WATCHDOG": (161, "Restarting"),
    "LIMIT_REACHED": (162, "Restarting"),
    "NOT_FETCHED": (163, "Restarting"),
}
"""The table of the contract: the code, and the phase of a job whose worker 1 has ended with it while worker 0 runs."""
NOW = datetime(2026, 1, 1, tzinfo=UTC)
LATER = timedelta(minutes=1)


def phase_after(code: int, waited: timedelta = LATER) -> str:
    """The job's phase once the operator has seen worker 1 end with this code, so long ago."""
    a_job = job({"entrypoint": "digits", "globalBatchSize": 8, "epochs": 1})
    begun = reconcile(Snapshot(a_job), NOW, CONFIG)
    bodies = [create.body for create in begun.creates if create.kind is Kind.POD]
    (service,) = [create.body for create in begun.creates if create.kind is Kind.SERVICE]
    ended = {"exitCode": code, "reason": "Error" if code else "Completed", "finishedAt": "2026-01-01T00:00:00Z"}
    pods = (_pod(bodies[0], "Running", {"running": {}}), _pod(bodies[1], "Failed", {"terminated": ended}))
    seen = Snapshot({**a_job, "status": begun.status}, pods, trim_dependent({**service, "metadata": _known(service)}))
    status = reconcile(seen, NOW + waited, CONFIG).status
    assert status is not None
    return str(status["phase"])


def _pod(body: Any, phase: str, state: dict[str, Any]) -> Pod:
    status = {"phase": phase, "containerStatuses": [{"name": "tensorflow", "ready": False, "state": state}]}
    return trim_pod({**body, "metadata": _known(body), "status": status})


def _known(body: Any) -> dict[str, Any]:
    return {**body["metadata"], "uid": f"uid-of-{body['metadata']['name']}", "resourceVersion": "1"}


def test_the_trainer_has_the_codes_of_the_table() -> None:
    assert trainer("facts")["exitCodes"] == {name: code for name, (code, _) in AGREED.items()}


@pytest.mark.parametrize("name", AGREED)
def test_the_operator_judges_them_as_the_table_says(name: str) -> None:
    code, phase = AGREED[name]
    assert phase_after(code) == phase


def test_only_after_a_peer_failure_the_operator_waits_for_the_cause() -> None:
    """It follows another task's failure, which is still to be observed and is the root cause."""
    at_once = timedelta(seconds=1)
    waiting = [name for name, (code, _) in AGREED.items() if code and phase_after(code, at_once) == "Starting"]
    assert waiting == ["PEER_FAILURE"]
