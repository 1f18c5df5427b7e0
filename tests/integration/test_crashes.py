"""The operator killed with SIGKILL, and what its successor makes of it. The proof crashes at each write
(tests/harness/crashpoints.py); here a kernel kills a process.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.integration.installed import Installation
from tests.integration.workspace import RUN_ON, RUN_UNTIL_TOLD, Workspace
from tests.machine import PATIENCE

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
