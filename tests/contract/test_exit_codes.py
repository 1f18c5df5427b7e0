"""The trainer's exit codes, as the operator's core classifies them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.contract.sides import CONFIG, job

from tfgpujob.core.observed.snapshot import Kind, Pod, Snapshot
from tfgpujob.core.observed.trim import trim_dependent, trim_pod
from tfgpujob.core.reconcile import reconcile
from tfgpujob_contract.exit_codes import ExitCode

PHASES = {
    ExitCode.DONE: "Starting",
    ExitCode.FAILED: "Failed",
    ExitCode.BAD_CONFIG: "Failed",
    ExitCode.OUT_OF_MEMORY: "Failed",
    ExitCode.FENCED: "Failed",
    ExitCode.LIMIT_AT_START: "Failed",
    ExitCode.STOPPED: "Restarting",
    ExitCode.PEER_FAILURE: "Restarting",
    ExitCode.WATCHDOG: "Restarting",
    ExitCode.LIMIT_REACHED: "Restarting",
    ExitCode.NOT_FETCHED: "Restarting",
    ExitCode.PEERS_MISSING: "Pending",
}
"""The phase of a job whose worker 1 has ended with the code while worker 0 runs."""
NOW = datetime(2026, 1, 1, tzinfo=UTC)
LATER = timedelta(minutes=1)


def phase_after(code: int, waited: timedelta = LATER) -> str:
    """The job's phase once the operator has seen worker 1 end with this code, so long ago."""
    a_job = job({"entrypoint": "digits", "globalBatchSize": 8, "epochs": 1})
    begun = reconcile(Snapshot(a_job), NOW, CONFIG)
    bodies = [create.body for create in begun.creates if create.kind is Kind.POD]
    (service,) = [create.body for create in begun.creates if create.kind is Kind.SERVICE]
    ended = {"exitCode": int(code), "reason": "Error" if code else "Completed", "finishedAt": "2026-01-01T00:00:00Z"}
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


@pytest.mark.parametrize("code", ExitCode)
def test_the_operator_judges_them_as_the_table_says(code: ExitCode) -> None:
    assert phase_after(code) == PHASES[code]


def test_only_after_a_peer_failure_the_operator_waits_for_the_cause() -> None:
    """It follows another task's failure, which is still to be observed and is the root cause."""
    at_once = timedelta(seconds=1)
    waiting = [code for code in PHASES if code and phase_after(code, at_once) == "Starting"]
    assert waiting == [ExitCode.PEER_FAILURE]
