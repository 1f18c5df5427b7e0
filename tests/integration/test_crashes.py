"""The operator killed with SIGKILL, at every write and between them; and what its successor makes of it."""

from __future__ import annotations

import pytest
from tests.integration.installed import Installation
from tests.integration.workspace import RUN_ON, Workspace

WRITES = 5
"""Of a start with two pods: the intent, the service, two pods, the event. The write of Running follows much later."""


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("write", range(1, WRITES + 1))
def test_a_crash_at_any_write_of_a_start_is_made_good(
    operator: Installation, workspace: Workspace, moment: str, write: int
) -> None:
    """One service, two pods, attempt 1, no restart and no disruption: what was there is taken up, not made again."""
    with operator.stopped():
        dying = operator.start(("tests.integration.dying_operator", moment, str(write)))
        operator.wait_for_leader()
        job = workspace.submit(workspace.new_job("survivor", RUN_ON))
        assert dying.wait(30) == -9
        left_behind = workspace.uids(job)
        operator.start()
        workspace.wait_for(job, "Running", seconds=40)

        pods = workspace.uids(job)
        assert sorted(pods) == ["survivor-worker-0", "survivor-worker-1"]
        assert left_behind.items() <= pods.items()
        status = workspace.status(job)
        assert (status["attempt"], status.get("restarts", 0), status.get("disruptions", 0)) == (1, 0, 0)


def test_an_operator_killed_between_two_writes_restarts_nothing(operator: Installation, workspace: Workspace) -> None:
    """kill -9 while a job runs; meanwhile a worker fails; the next operator sees to it."""
    with operator.stopped():
        victim = operator.start()
        operator.wait_for_leader()
        quiet = workspace.submit(workspace.new_job("quiet", RUN_ON))
        ending = workspace.submit(workspace.new_job("ending", "import time; time.sleep(3)"))
        workspace.wait_for(quiet, "Running")
        workspace.wait_for(ending, "Running")
        victim.kill()
        victim.wait(30)
        before = workspace.uids(quiet)
        workspace.eventually(
            lambda: all(pod["status"]["phase"] == "Succeeded" for pod in workspace.pods(ending).values()),
            "the workers end while there is no operator",
        )
        operator.start()
        assert workspace.finished(ending) == "Succeeded"
        assert workspace.uids(quiet) == before
        assert workspace.status(quiet)["attempt"] == 1
