"""The account in the status of a job to which much happens, against the clock."""

from __future__ import annotations

import pytest
from localcluster.release import NAMESPACE
from tests.integration.installed import Installation
from tests.integration.training import (
    RESUMED,
    STEPS,
    account,
    enough,
    kill_process,
    log,
    new_trainer,
    steps_done,
    whole_seconds,
)
from tests.integration.workspace import Workspace

pytestmark = pytest.mark.serial
PROGRESS = '"tfgpu": "progress"'
ENOUGH = 20
"""Steps of an attempt, after which something happens to it."""
LOST_STEPS = 10
"""At most, of a pod that is deleted without a grace period. There is no checkpoint in storage until then."""


def test_the_account_is_whole_after_three_kills_a_suspend_and_an_operator_that_dies(
    workspace: Workspace, operator: Installation, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two workers lose a process each, which starts again in place. In between the operator dies, and before another
    one leads, worker 0's pod, whose account it is, goes at once.
    """
    # Time enough to stop: the last restart may be told of in its pod's last words alone.
    pod = {"terminationGracePeriodSeconds": 60}
    job = new_trainer(workspace, "accounted", {"worker": {"replicas": 2, "pod": pod}}, steps=10 * STEPS)
    job["spec"]["runPolicy"] = {"recovery": "InPlace", "backoffLimit": 2}
    job["spec"]["trainer"]["checkpoint"] = {"everyEpochs": 10 * STEPS}
    name = workspace.submit(job)
    first, second = f"{name}-worker-0", f"{name}-worker-1"
    workspace.eventually(lambda: steps_done(workspace, first) > ENOUGH, "it trains")
    kill_process(workspace, second, first, RESUMED, PROGRESS)

    leader, before = operator.wait_for_leader(), workspace.uids(name)
    if not operator.as_process:
        workspace.kube.delete("Pod", NAMESPACE, leader, grace_seconds=0)
    done = steps_done(workspace, first)
    workspace.kube.delete("Pod", workspace.namespace, first, grace_seconds=0)
    if not operator.as_process:
        operator.wait_for_leader(other_than=leader)
    workspace.eventually(lambda: workspace.uids(name).get(first, before[first]) != before[first], "its pod is replaced")
    workspace.eventually(lambda: RESUMED in log(workspace, first), "it goes on")
    resumed = int(log(workspace, first).partition(RESUMED)[2].split()[0])
    assert resumed >= done - LOST_STEPS
    workspace.eventually(lambda: steps_done(workspace, first) > resumed, "it trains again")
    kill_process(workspace, first, first, RESUMED, PROGRESS)

    workspace.edit(name, runPolicy={"suspend": True})
    workspace.wait_for(name, "Suspended")
    workspace.eventually(lambda: not workspace.pods(name), "no pod runs")
    workspace.edit(name, runPolicy={"suspend": False})
    workspace.eventually(lambda: steps_done(workspace, first) > ENOUGH, "it trains once more")
    enough(workspace, first)
    assert workspace.finished(name) == "Succeeded", workspace.describe()

    status, parts, whole = workspace.status(name), account(workspace, name), whole_seconds(workspace, name)
    # The second attempt is that after the suspension: the lost pod alone was replaced.
    assert (status["attempt"], status["disruptions"]) == (2, 1), workspace.describe()
    # The first may be lost with the pod, which was not polled since.
    assert status["inPlaceRestarts"] in (1, 2), workspace.describe()
    assert {"importing", "tracing", "suspended", "useful"} <= parts.keys()
    assert status["goodput"]["reachedStep"] == 10 * STEPS
    with capsys.disabled():
        print(f"\nthe account sums to {100 * sum(parts.values()) / whole:.1f} % of {whole:.0f} s: {parts}")
        print(
            f"a pod that was deleted without a grace period had told of step {done}; the next resumed after {resumed}"
        )
