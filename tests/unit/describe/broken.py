"""A dozen jobs that don't do what their authors wanted, told to a real operator on the cluster in memory."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tests.harness import vtime
from tests.harness.faults import Injector
from tests.harness.feed import Blindfold
from tests.harness.resources import Object, merged
from tests.harness.scenario import NAMESPACE, apply, foreign_pod, job, quota
from tests.harness.vtime import VirtualLoop
from tests.harness.world import World

from tfgpujob import names
from tfgpujob.describe import describe

NAME = "digits"
PATIENCE = 60.0
Tell = Callable[[World], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Broken:
    """One story, which brings the job to the moment at which its author asks what is wrong."""

    title: str
    cause: str
    """What the first lines must name."""
    step: str
    """What they must advise."""
    tell: Tell


Known = tuple[Object, Sequence[Object], Sequence[Object], Sequence[Object], datetime]
"""What describe() is given."""


def page(broken: Broken) -> str:
    """What `tfgpu describe` shows at the end of the story."""
    return describe(*known(broken))


def known(broken: Broken) -> Known:
    """The job, its pods, events and nodes, and the time, at the end of the story."""
    loop = VirtualLoop()
    return vtime.run(_told(broken, loop), loop)


async def _told(broken: Broken, loop: VirtualLoop) -> Known:
    world = World({}, Injector(), Blindfold())
    world.work = 100_000.0
    world.add_nodes(["node-a", "node-b"])
    for node in ("node-a", "node-b"):
        held = world.server.get("Node", "", node)
        status = {**held["status"], "allocatable": {"nvidia.com/gpu": "1"}}
        world.server.replace("Node", "", merged(held, status=status), status=True, by="kubelet")
    world.spawn("operator-a")
    await asyncio.sleep(1)
    await broken.tell(world)
    # What the operator writes after the status: its events.
    await asyncio.sleep(3)
    select = world.server.select
    return (
        world.server.get(names.KIND, NAMESPACE, NAME),
        world.pods(NAME),
        [e for e in select("Event", NAMESPACE) if e["involvedObject"]["name"] == NAME],
        select("Node"),
        loop.wall(),
    )


def _job(**fields: Any) -> Object:
    return job(NAME, worker=2, **fields)


async def _phase(world: World, phase: str) -> None:
    def reached() -> bool:
        status = world.server.get(names.KIND, NAMESPACE, NAME).get("status") or {}
        return bool(status.get("phase") == phase)

    assert await world.until(reached, PATIENCE), phase


async def _condition(world: World, kind: str, reason: str) -> None:
    def reached() -> bool:
        conditions = (world.server.get(names.KIND, NAMESPACE, NAME).get("status") or {}).get("conditions") or ()
        return any((c["type"], c["reason"]) == (kind, reason) for c in conditions)

    assert await world.until(reached, PATIENCE), reason


def _pod(world: World, index: int) -> Object:
    return world.server.get("Pod", NAMESPACE, f"{NAME}-worker-{index}")


async def _image(world: World) -> None:
    world.kubelet.start_delay = PATIENCE
    apply(_job())(world)
    assert await world.until(
        lambda: all(p["spec"].get("nodeName") for p in world.pods(NAME)) and bool(world.pods(NAME)), PATIENCE
    )
    for i in range(2):
        text = 'Back-off pulling image "example.com/train:1": not found'
        world.kubelet.waiting(_pod(world, i), "ImagePullBackOff", text)
    await _condition(world, "Running", "ReplicaNotReady")


async def _unschedulable(world: World) -> None:
    world.scheduler.gpus = 2
    apply(_job(spec={"gpu": {"perReplica": 4}}))(world)
    await _condition(world, "Running", "ReplicaNotReady")


async def _quota(world: World) -> None:
    apply(quota(pods="1"))(world)
    apply(_job())(world)
    await _condition(world, "Created", "QuotaExceeded")


async def _ends(world: World, code: int, **said: Any) -> None:
    apply(_job())(world)
    await _phase(world, "Running")
    await asyncio.sleep(600)
    world.kubelet.finish(_pod(world, 1), code, json.dumps({"code": code, **said}))


async def _exception(world: World) -> None:
    lines = [
        'File "/code/train.py", line 31, in data',
        "  return rows[:1500].reshape(28, 28)",
        "ValueError: cannot reshape array of size 96000 into shape (28,28)",
    ]
    text = "ValueError: cannot reshape array of size 96000 into shape (28,28)"
    await _ends(world, 1, cause="Exception", message=text, lastLines=lines)
    await _phase(world, "Failed")


async def _memory(world: World) -> None:
    text = "out of memory: OOM when allocating tensor with shape[512,64,224,224] and type float on GPU:0"
    fix = "lower trainer.globalBatchSize, or ask for more memory"
    await _ends(world, 70, cause="OutOfMemory", message=text, fix=fix)
    await _phase(world, "Failed")


async def _threads(world: World) -> None:
    text = (
        "out of threads: pids.max of the container's cgroup is 4,096, 4,071 are in use, 4,049 of them threads of the "
        "training process (4,023 python, 12 tf_Compute, 4 event_engine): F0000 00:00:00 env.cc:84] Check failed: "
        "ret == 0 (11 vs. 0) Thread tf_data_iterator_resource creation via pthread_create() failed. (figures of 1.2 s "
        "before the end)"
    )
    fix = (
        "raise the limit of the pod (podPidsLimit in the kubelet's configuration) or of the container runtime, or "
        "start fewer: trainer.data.parallelReads, and the threads and processes of your own module"
    )
    await _ends(world, 162, cause="LimitReached", message=text, fix=fix)
    await _phase(world, "Restarting")


async def _hang(world: World) -> None:
    text = "no step has ended for 300 s (trainer.watchdog.stepSeconds)"
    stack = ['File "/code/train.py", line 12, in read', "  return queue.get()"]
    await _ends(world, 161, cause="ProgressDeadline", message=text, lastLines=stack)
    await _phase(world, "Restarting")


async def _node(world: World) -> None:
    apply(_job())(world)
    await _phase(world, "Running")
    await asyncio.sleep(600)
    world.scheduler.gpus = 1
    world.lose_node("node-b")
    await _phase(world, "Restarting")


async def _path(world: World) -> None:
    text = "trainer.initialWeights: there is no whole checkpoint in /output/yesterday"
    fix = "name an output directory, a checkpoint, or a .keras or .weights.h5 file"
    apply(_job())(world)
    await _phase(world, "Running")
    world.kubelet.finish(_pod(world, 0), 2, json.dumps({"cause": "BadConfig", "message": text, "fix": fix}))
    await _phase(world, "Failed")


async def _name(world: World) -> None:
    apply(foreign_pod(f"{NAME}-worker-1"))(world)
    apply(_job())(world)
    await _condition(world, "Accepted", "NameTaken")


async def _edit(world: World) -> None:
    apply(_job())(world)
    await _phase(world, "Running")
    await asyncio.sleep(600)
    held = world.server.get(names.KIND, NAMESPACE, NAME)
    spec = merged(held["spec"], image="example.com/train:2")
    world.server.replace(names.KIND, NAMESPACE, merged(held, spec=spec), by="user")
    await _condition(world, "Accepted", "ImmutableFieldChanged")


async def _away(world: World) -> None:
    apply(_job())(world)
    await _phase(world, "Running")
    await asyncio.sleep(600)
    world.lost.add("operator-a")
    await asyncio.sleep(600)
    world.lost.add("operator-a")
    world.operators["operator-a"].kill()
    world.kubelet.finish(_pod(world, 1), 1)
    await asyncio.sleep(40)


BROKEN = (
    Broken("The image can't be pulled", "ImagePullBackOff", "Check the image's name", _image),
    Broken("No node has enough GPUs", "Unschedulable", "add nodes that fit", _unschedulable),
    Broken("The quota is full", "exceeded quota", "have the namespace's ResourceQuota raised", _quota),
    Broken("The program raises an exception", "ValueError: cannot reshape", "correct the program", _exception),
    Broken("The GPU's memory is full", "out of memory", "Lower trainer.globalBatchSize", _memory),
    Broken("The pod's threads are used up", "pids.max of the container's cgroup is 4,096", "Raise the limit", _threads),
    Broken("The program hangs", "no step has ended for 300 s", "Look at the stacks", _hang),
    Broken("A node is lost", "NodeLost", "have this one looked at", _node),
    Broken(
        "The checkpoint's path is wrong", "there is no whole checkpoint in /output/yesterday", "Name an output", _path
    ),
    Broken("The name belongs to another pod", "belongs to somebody else", "Free the name", _name),
    Broken("An edit that a running job can't take", "image", "Take the change back", _edit),
    Broken("The operator is away", "digits-worker-1 failed 43s ago", "tfgpu doctor", _away),
)
