"""Jobs of several workers, as the tests of elasticity, resizes and losses begin with them."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

from tests.unit.core import make
from tests.unit.core.simulator import World

from tfgpujob.core.observed.snapshot import Kind

NO_ROOM = "0/2 nodes are available: 2 Insufficient nvidia.com/gpu."

POLICY = {"shrinkAfterSeconds": 30, "growAfterSeconds": 60}


def resizable_gang(workers: int = 2, **parts: Any) -> World:
    """It runs, and its leader begins its rounds."""
    run = {"recovery": "InPlace", "backoffLimit": 0, **parts.pop("run", {})}
    return World.training(make.job(worker={"replicas": workers, "minReplicas": 1, "maxReplicas": 8}, run=run, **parts))


def environment(world: World, pod: str) -> dict[str, str]:
    (container,) = world.pod(pod)["spec"]["containers"]
    return {entry["name"]: entry["value"] for entry in container["env"]}


def uids(world: World) -> dict[str, str]:
    return {name: world.pod(name)["metadata"]["uid"] for name in world.pods}


def workers(*indexes: int) -> list[str]:
    return [f"train-worker-{index}" for index in indexes]


class Room(World):
    """A cluster with this many free nodes, each for one pod."""

    def __init__(self, job: dict[str, Any], nodes: int) -> None:
        super().__init__(job)
        self.nodes = nodes
        self.settle()
        self.schedule()

    def schedule(self) -> None:
        """The scheduler looks: the pods that were created first go first."""
        for _ in range(10):
            held = [name for name in self.pods if self.pod(name)["spec"].get("nodeName")]
            new = [name for name in self.pods if name not in held and not self.pod(name).get("status")]
            waiting = [name for name in self.pods if name not in held]
            placed = waiting[: max(0, self.nodes - len(held))]
            for name in placed:
                self.pod(name)["spec"]["nodeName"] = "node-1"
            for name in set(new) - set(placed):
                self.waits(name, "Unschedulable", NO_ROOM)
            if not (placed or new):
                return
            self.ready(*placed)

    def passes(self, **time: float) -> None:
        """Time passes, and the scheduler looks every second."""
        for _ in range(int(timedelta(**time).total_seconds())):
            self.advance(seconds=1)
            self.schedule()

    def joined(self, workers: int) -> None:
        """The leader agrees, and a round with this many workers starts."""
        self.leader_says(self.status["plan"]["counts"]["worker"], workers)
        self.schedule()
        self.leader_says(workers, workers)
        self.schedule()


def limited(nodes: int = 3, asked: int = 8, least: int = 2, **run: Any) -> Room:
    given = {"recovery": "InPlace", "elasticPolicy": POLICY, **run}
    policy = {key: value for key, value in given.items() if value is not None}
    return Room(make.job(worker={"replicas": asked, "minReplicas": least, "maxReplicas": 8}, run=policy), nodes)


def started(nodes: int = 3, **parts: Any) -> Room:
    """It runs with the workers that there is room for."""
    world = limited(nodes, **parts)
    world.passes(seconds=40)
    assert (world.phase, world.pods) == ("Running", workers(*range(nodes)))
    return world


def events(world: World, reason: str) -> list[str]:
    return [event.message for event in world.events if event.reason == reason]


def scale(world: World, workers: int) -> None:
    world.edit(lambda spec: spec["replicaSpecs"]["worker"].update(replicas=workers))


def cluster_sizes(world: World) -> set[int]:
    """How many workers each pod's TF_CONFIG knows."""
    found = set()
    for name in world.pods:
        (container,) = world.pod(name)["spec"]["containers"]
        config = next(v["value"] for v in container["env"] if v["name"] == "TF_CONFIG")
        found.add(len(json.loads(config)["cluster"]["worker"]))
    return found


def elastic_gang(count: int = 3, least: int = 2, **parts: Any) -> World:
    """It runs, and trains on without a worker that is lost."""
    given = {"recovery": "InPlace", "backoffLimit": 0, "elasticPolicy": POLICY, **parts.pop("run", {})}
    run = {key: value for key, value in given.items() if value is not None}
    worker = {"replicas": count, "minReplicas": least, "maxReplicas": 8}
    return World.training(make.job(worker=worker, run=run, **parts))


def rigid_gang(count: int = 3, **parts: Any) -> World:
    """The same, and it waits for a worker that is lost."""
    run = {"recovery": "InPlace", "backoffLimit": 0, **parts.pop("run", {})}
    return World.training(make.job(worker=count, run=run, **parts))


def deleted(world: World, *pods: str) -> None:
    for pod in pods:
        world.remove(Kind.POD, pod)


def running(workers: int = 2, **parts: Any) -> World:
    return World.running(make.job(**{"worker": workers, **parts}))
