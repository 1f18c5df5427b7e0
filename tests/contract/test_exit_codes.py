"""The trainer's exit codes (tfgpujob_trainer/exits.py), as the operator judges them (core/failure.py)."""

from __future__ import annotations

import pytest
from tests.contract.sides import trainer

from tfgpujob.api import RestartPolicy
from tfgpujob.core.failure import PEER_FAILURE, Cause, Failure, first_failure
from tfgpujob.core.plan import Plan
from tfgpujob.core.snapshot import Pod, Termination
from tfgpujob.core.view import View
from tfgpujob.names import Role

AGREED = {
    "DONE": (0, None),
    "FAILED": (1, Cause.PERMANENT),
    "BAD_CONFIG": (2, Cause.PERMANENT),
    "OUT_OF_MEMORY": (70, Cause.PERMANENT),
    "FENCED": (71, Cause.PERMANENT),
    "STOPPED": (143, Cause.RETRYABLE),
    "PEER_FAILURE": (160, Cause.RETRYABLE),
    "WATCHDOG": (161, Cause.RETRYABLE),
}
"""The table of the contract: code, and what a restartPolicy ExitCode makes of it."""


def judged(code: int) -> Failure | None:
    """The failure that the operator sees in one worker which ended with this code."""
    ended = Termination(code, None, "Error" if code else "Completed", "", "2026-01-01T00:00:00Z")
    pod = Pod(
        name="job-worker-0",
        uid="p",
        resource_version="1",
        job_name="job",
        owner_uid="j",
        role="worker",
        index=0,
        attempt=1,
        replica_restart=0,
        deleting=False,
        phase="Failed" if code else "Succeeded",
        ready=False,
        node="n",
        status_reason="",
        waiting_reason="",
        waiting_message="",
        disrupted=False,
        termination=ended,
    )
    plan = Plan("h", {Role.WORKER: 1}, {Role.WORKER: (2222,)}, {Role.WORKER: "i"}, "g", "1")
    view = View("job", plan, {(Role.WORKER, 0): pod}, (), (), frozenset())
    return first_failure(view, {Role.WORKER: RestartPolicy.EXIT_CODE}, frozenset())


def test_the_trainer_has_the_codes_of_the_table() -> None:
    assert trainer("facts")["exitCodes"] == {name: code for name, (code, _) in AGREED.items()}


@pytest.mark.parametrize("name", AGREED)
def test_the_operator_judges_them_as_the_table_says(name: str) -> None:
    code, cause = AGREED[name]
    failure = judged(code)
    assert (failure.cause if failure else None) == cause


def test_only_a_peer_failure_is_an_echo_of_another() -> None:
    """The operator looks for the failure behind it before it blames anybody."""
    assert AGREED["PEER_FAILURE"][0] == PEER_FAILURE
    echoes = [name for name, (code, _) in AGREED.items() if (failure := judged(code)) and failure.is_echo]
    assert echoes == ["PEER_FAILURE"]
