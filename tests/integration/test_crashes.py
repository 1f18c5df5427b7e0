"""The operator killed with SIGKILL, at every write and between them; and what its successor makes of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.integration.installed import Installation
from tests.integration.workspace import RUN_ON, RUN_UNTIL_TOLD, Workspace
from tests.machine import PATIENCE

MOMENTS = [("before", 1), ("after", 3)]
"""The writes of a start with two pods: 1 the intent, 2 to 4 the service and the pods in no order, 5 the event. The
proof crashes at each of them (tests/harness/crashpoints.py); here a kernel kills a process."""


pytestmark = pytest.mark.serial


@pytest.fixture(scope="module", autouse=True)
def _nobody_else(operator: Installation) -> Iterator[None]:
    """Only the processes that the tests start are operators here."""
    with operator.stopped():
        yield


@pytest.fixture(autouse=True)
def _end_processes(operator: Installation) -> Iterator[None]:
    yield
    operator.end_processes()


@pytest.mark.parametrize(("moment", "write"), MOMENTS)
def test_a_crash_at_any_write_of_a_start_is_made_good(
    operator: Installation, workspace: Workspace, moment: str, write: int
) -> None:
    """One service, two pods, attempt 1, no restart and no disruption: what was there is taken up, not made again."""
    dying = operator.start(("tests.integration.dying_operator", moment, str(write), workspace.namespace))
    operator.wait_for_leader()
    job = workspace.submit(workspace.new_job("survivor", RUN_ON))
    assert dying.wait(PATIENCE) == -9
    left_behind = workspace.uids(job)
    operator.start()
    workspace.wait_for(job, "Running")

    pods = workspace.uids(job)
    assert sorted(pods) == ["survivor-worker-0", "survivor-worker-1"]
    assert left_behind.items() <= pods.items()
    status = workspace.status(job)
    assert (status["attempt"], status.get("restarts", 0), status.get("disruptions", 0)) == (1, 0, 0)


def test_an_operator_killed_between_two_writes_restarts_nothing(operator: Installation, workspace: Workspace) -> None:
    """kill -9 while two jobs run; one of them ends meanwhile, and the next operator sees to it."""
    victim = operator.start()
    operator.wait_for_leader()
    quiet = workspace.submit(workspace.new_job("quiet", RUN_ON))
    ending = workspace.submit(workspace.new_job("ending", RUN_UNTIL_TOLD))
    workspace.wait_for(quiet, "Running")
    workspace.wait_for(ending, "Running")
    victim.kill()
    victim.wait(PATIENCE)
    before = workspace.uids(quiet)
    workspace.tell_to_end(ending)
    workspace.eventually(
        lambda: all(pod["status"]["phase"] == "Succeeded" for pod in workspace.pods(ending).values()),
        "the workers end while there is no operator",
    )
    operator.start()
    assert workspace.finished(ending) == "Succeeded"
    assert workspace.uids(quiet) == before
    assert workspace.status(quiet)["attempt"] == 1
