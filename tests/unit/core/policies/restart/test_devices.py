"""A device that its kubelet calls unhealthy: the job moves away from it, and pays nothing."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.core import make
from tests.unit.core.simulator import World

from tfgpujob import names

BROKEN = {"name": "nvidia.com/gpu", "resources": [{"resourceID": "GPU-7", "health": "Unhealthy", "message": "Xid 79"}]}
FINE = {"name": "nvidia.com/gpu", "resources": [{"resourceID": "GPU-7", "health": "Healthy"}]}


def running(*strategy: str, **job: Any) -> World:
    return World.running(make.job(*strategy, **job))


def allocated(world: World, name: str, *told: dict[str, Any], container: str = names.CONTAINER) -> None:
    """The kubelet says this of the devices of a container."""
    pod = world.pod(name)
    pod["spec"]["nodeName"] = "gpu-3"
    statuses = [dict(status) for status in pod["status"]["containerStatuses"]]
    if all(status["name"] != container for status in statuses):
        statuses.append({"name": container})
    for status in statuses:
        if status["name"] == container:
            status["allocatedResourcesStatus"] = list(told)
    pod["status"] = {**pod["status"], "containerStatuses": statuses}
    world.settle()


def test_a_device_that_breaks_moves_the_job_and_spends_nothing() -> None:
    world = running(worker=2, run={"backoffLimit": 0})
    allocated(world, "train-worker-1", FINE, BROKEN)
    last = world.status["lastFailure"]
    assert (last["role"], last["index"], last["cause"]) == ("worker", 1, "DeviceUnhealthy")
    assert last["message"] == "on the node gpu-3: nvidia.com/gpu GPU-7 (Xid 79)"
    assert (world.status["restarts"], world.status["disruptions"]) == (0, 1)
    assert world.message("Restarting") == "train-worker-1 has a device that is not healthy; all replicas start again."
    assert (world.phase, world.attempts()) == ("Restarting", {"2"})


def test_a_program_that_a_broken_device_ended_is_not_at_fault() -> None:
    world = running(worker=2, run={"backoffLimit": 0})
    world.stop()
    allocated(world, "train-worker-0", BROKEN)
    world.exits("train-worker-0", 1)
    status = world.pod("train-worker-0")["status"]["containerStatuses"][0]
    status["allocatedResourcesStatus"] = [BROKEN]
    world.start()
    last = world.status["lastFailure"]
    assert (last["cause"], last["exitCode"], world.phase) == ("DeviceUnhealthy", 1, "Restarting")


def test_a_replica_that_restarts_alone_is_the_only_one_to_move() -> None:
    world = running("ParameterServer", worker=2, ps=1, chief=1)
    allocated(world, "train-worker-1", BROKEN)
    assert world.attempts() == {"1"}
    assert [delete.name for delete in world.deletes] == ["train-worker-1"]


@pytest.mark.parametrize("health", ["Healthy", "Unknown"])
def test_what_is_not_known_to_be_broken_is_left_alone(health: str) -> None:
    world = running(worker=1)
    allocated(world, "train-worker-0", {"name": "a", "resources": [{"resourceID": "1", "health": health}]})
    assert world.phase == "Running"


def test_a_sidecars_device_is_not_the_jobs() -> None:
    world = running(worker=1)
    allocated(world, "train-worker-0", BROKEN, container="logs")
    assert world.phase == "Running"


def test_a_replica_that_has_succeeded_needs_its_device_no_more() -> None:
    world = running(worker=2)
    world.exits("train-worker-1", 0)
    allocated(world, "train-worker-1", BROKEN)
    assert world.phase == "Running"
