"""Every timer, with no operator there when it is due: the next one sees to it. All jobs run at the same time."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from tests.integration.conftest import new_workspace
from tests.integration.installed import Installation
from tests.integration.kube import Kube
from tests.integration.target import Target
from tests.integration.training import STEPS_AN_EPOCH, steps_done, train
from tests.integration.workspace import RUN_ON, Workspace
from tests.machine import scaled

pytestmark = pytest.mark.serial
DUE_AFTER = 20
"""Seconds of each timer, on a quiet machine: it begins before the operator goes, and ends while there is none."""
FAIL_ONCE = "import os, sys; sys.exit(137 if os.environ['TFGPU_ATTEMPT'] == '1' else 0)"


@pytest.fixture(scope="module")
def overdue(kube: Kube, target: Target, operator: Installation) -> Iterator[Workspace]:
    """All timers have become due while there was no operator, and now there is one again."""
    seconds = scaled(DUE_AFTER)
    with new_workspace(kube, target, operator) as workspace:
        train(workspace, "stalled", {}, victim="1", mishap="stall", stallSeconds=seconds, stallPolicy="Restart")
        workspace.eventually(
            lambda: steps_done(workspace, "stalled-worker-0") >= STEPS_AN_EPOCH, "it trains", seconds=120
        )
        roles = {"chief": {"gpus": 64}, "worker": {"replicas": 1}}
        start = {"startDeadlineSeconds": seconds, "startPolicy": "Fail"}
        workspace.submit(workspace.new_job("active", RUN_ON, runPolicy={"activeDeadlineSeconds": seconds}))
        workspace.submit(workspace.new_job("start", RUN_ON, roles=roles, runPolicy=start))
        schedule = {"schedulingPolicy": {"scheduleTimeoutSeconds": seconds}, "startPolicy": "Fail"}
        workspace.submit(workspace.new_job("schedule", RUN_ON, roles=roles, runPolicy=schedule))
        workspace.submit(workspace.new_job("ttl", runPolicy={"ttlSecondsAfterFinished": seconds}))
        workspace.submit(workspace.new_job("backoff", FAIL_ONCE))
        workspace.wait_for("active", "Running")
        workspace.wait_for("start", "Running", status="False", reason="ReplicaNotReady")
        workspace.wait_for("schedule", "Running", status="False", reason="ReplicaNotReady")
        workspace.finished("ttl")
        workspace.wait_for("backoff", "Restarting")
        try:
            operator.pause()
            assert phases(workspace) == {
                "active": "Running",
                "backoff": "Restarting",
                "schedule": "Starting",
                "stalled": "Running",
                "start": "Starting",
                "ttl": "Succeeded",
            }
            # The stall begins at most 5 s later.
            due = datetime.now(UTC) + timedelta(seconds=seconds + 5)
            workspace.eventually(lambda: datetime.now(UTC) > due, "all is overdue", seconds=2 * seconds)
            assert workspace.kube.find("TFGPUJob", workspace.namespace, "ttl") is not None
        finally:
            operator.resume()
        yield workspace


def phases(workspace: Workspace) -> dict[str, str]:
    jobs = workspace.kube.list("TFGPUJob", workspace.namespace)
    return {job["metadata"]["name"]: job["status"]["phase"] for job in jobs}


def test_active_deadline_seconds_fires_after_a_restart(overdue: Workspace) -> None:
    assert overdue.finished("active") == "Failed"
    assert overdue.condition("active", "Failed")["reason"] == "DeadlineExceeded"
    overdue.eventually(lambda: not overdue.pods("active"), "its pods go")


def test_start_deadline_seconds_fires_after_a_restart(overdue: Workspace) -> None:
    assert overdue.finished("start") == "Failed"
    assert overdue.condition("start", "Failed")["reason"] == "StartDeadlineExceeded"
    # The wait-for-peers init container of its worker gave up meanwhile, which is no failure of the worker.
    assert overdue.status("start").get("restarts", 0) == 0
    # What has ended may stay, for its log.
    ended = lambda: {pod["status"]["phase"] for pod in overdue.pods("start").values()} <= {"Failed"}  # noqa: E731
    overdue.eventually(ended, "nothing waits or runs any more")


def test_the_schedule_timeout_fires_after_a_restart(overdue: Workspace) -> None:
    assert overdue.finished("schedule") == "Failed"
    found = overdue.condition("schedule", "Failed")
    assert found["reason"] == "ScheduleTimeoutExceeded"
    assert "schedule-chief-0: 0/" in found["message"], "the scheduler's own words"
    assert "worker" not in found["message"], "that one has a node"
    assert overdue.status("schedule")["lastFailure"]["cause"] == "Unschedulable"


def test_ttl_seconds_after_finished_fires_after_a_restart(overdue: Workspace) -> None:
    gone = lambda: overdue.kube.find("TFGPUJob", overdue.namespace, "ttl") is None  # noqa: E731
    overdue.eventually(gone, "the job has expired")


def test_a_backoff_ends_after_a_restart(overdue: Workspace) -> None:
    assert overdue.finished("backoff") == "Succeeded"
    status = overdue.status("backoff")
    assert (status["attempt"], status["restarts"]) == (2, 1)


def test_a_stall_is_restarted_after_a_restart(overdue: Workspace) -> None:
    """By the trainer's own word, for which it is asked again; then it trains on to the end."""
    assert overdue.finished("stalled") == "Succeeded", overdue.describe()
    status = overdue.status("stalled")
    assert (status["attempt"], status["restarts"]) == (2, 1)
    failure = status["lastFailure"]
    assert (failure["role"], failure["index"], failure["cause"]) == ("worker", 1, "Hang")
