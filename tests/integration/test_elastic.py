"""An elastic job goes on with another number of workers, with real training."""

from __future__ import annotations

import re

from tests.integration import training
from tests.integration.kube import path_of
from tests.integration.workspace import Workspace

STEPS = 2 * training.STEPS


def test_a_job_that_trains_is_scaled_up_and_down_and_ends_as_one(workspace: Workspace) -> None:
    job = training.new_trainer(workspace, "elastic", {"worker": {"replicas": 2}}, steps=STEPS)
    job["spec"]["replicaSpecs"]["worker"] |= {"minReplicas": 1, "maxReplicas": 3}
    name = workspace.submit(job)
    up = resized(workspace, name, workers=3, after=10)
    down = resized(workspace, name, workers=1, after=up + 10)
    assert 0 < up < down < STEPS
    assert workspace.finished(name) == "Succeeded"
    status = workspace.status(name)
    assert (status["resizes"], status["restarts"], status["attempt"]) == (2, 0, 3)
    assert list(workspace.pods(name)) == [f"{name}-worker-0"]
    assert f"done after {STEPS} steps" in training.log(workspace, f"{name}-worker-0")


def resized(workspace: Workspace, name: str, *, workers: int, after: int) -> int:
    """Scales it, as `kubectl scale` does, after so many steps; after which step the new pods go on."""
    first = f"{name}-worker-0"
    workspace.eventually(lambda: training.steps_done(workspace, first) > after, f"it trains beyond step {after}")
    before = workspace.uids(name)[first]
    path = f"{path_of('TFGPUJob', workspace.namespace, name)}/scale"
    told = workspace.kube.call("PATCH", path, {"spec": {"replicas": workers}}, "application/merge-patch+json")
    assert told["spec"]["replicas"] == workers

    def resumed() -> re.Match[str] | None:
        if workspace.uids(name).get(first, before) == before:
            return None
        return re.search(r"resuming after step (\d+)", training.log(workspace, first))

    step = int(workspace.eventually(resumed, f"{workers} new workers go on").group(1))
    workspace.wait_for(name, "Running")
    assert len(workspace.pods(name)) == workers
    return step
