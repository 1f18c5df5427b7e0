"""status.digests, and when an attempt has its images as volumes."""

from __future__ import annotations

from typing import Any

from tests.unit.core import make
from tests.unit.core.simulator import World

from tfgpujob import names

A, B = f"sha256:{'a' * 64}", f"sha256:{'b' * 64}"


def started(*, image_volumes: bool = False, **trainer: Any) -> World:
    world = World(make.job(worker=2, trainer={**make.TRAINER, "code": {"image": "code:1"}, **trainer}))
    world.image_volumes = image_volumes
    world.settle()
    return world


def pulls(world: World, pod: str, digest: str, container: str = names.CODE_VOLUME) -> None:
    """Its kubelet has pulled the image and the copy is under way."""
    status = world.pod(pod).setdefault("status", {"phase": "Pending"})
    status.setdefault("initContainerStatuses", []).append({"name": container, "imageID": f"r/i@{digest}"})
    world.settle()


def test_what_was_pulled_is_told_with_the_next_write() -> None:
    world = started(models={"image": "models:1"})
    before = len(world.writes)
    for pod in world.pods:
        pulls(world, pod, A)
        pulls(world, pod, B, names.MODELS_VOLUME)
    assert len(world.writes) == before, "no write of its own"
    world.advance(seconds=11)
    assert world.status["digests"] == {"code": [A], "models": [B]}
    world.ready()
    assert world.status["digests"] == {"code": [A], "models": [B]}, "pods that tell no more leave what they told"


def test_a_tag_that_moved_between_two_pulls_is_seen() -> None:
    world = started()
    pulls(world, "train-worker-0", B)
    pulls(world, "train-worker-1", A)
    world.advance(seconds=11)
    assert world.status["digests"] == {"code": [A, B]}


def test_the_next_attempt_tells_anew() -> None:
    world = started()
    pulls(world, "train-worker-0", A)
    world.advance(seconds=11)
    assert world.status["digests"] == {"code": [A]}
    world.ready(*world.pods)
    world.exits("train-worker-0", 137)
    assert "digests" not in world.status
    world.advance(minutes=1)
    pulls(world, "train-worker-0", B)
    world.advance(seconds=11)
    assert world.status["digests"] == {"code": [B]}


def sources(world: World) -> set[str]:
    """What the pods have their code from."""
    specs = [world.pod(name)["spec"] for name in world.pods]
    volumes = [next(v for v in spec["volumes"] if v["name"] == names.CODE_VOLUME) for spec in specs]
    return {next(key for key in volume if key != "name") for volume in volumes}


def test_an_attempt_keeps_to_what_all_nodes_could_do_when_it_began() -> None:
    world = started()
    assert sources(world) == {"emptyDir"}
    world.image_volumes = True
    world.ready()
    assert "imageVolumes" not in world.status["plan"]
    world.exits("train-worker-0", 137)
    world.advance(minutes=1)
    assert world.status["plan"]["imageVolumes"] is True
    assert sources(world) == {"image"}
    world.image_volumes = False
    world.start()
    world.ready()
    assert world.status["plan"]["imageVolumes"] is True, "what runs goes on"
    assert sources(world) == {"image"}


def test_a_start_that_a_node_could_not_make_takes_copies_the_next_time() -> None:
    world = started(image_volumes=True)
    assert sources(world) == {"image"}
    world.image_volumes = False
    world.advance(minutes=40)
    assert world.attempts() != {"1"}
    assert sources(world) == {"emptyDir"}


def test_pods_that_have_gone_leave_what_they_told() -> None:
    world = started()
    pulls(world, "train-worker-0", B)
    world.advance(seconds=11)
    status = world.pod("train-worker-0")["status"]
    status["initContainerStatuses"][-1]["imageID"] = f"r/i@{A}"
    world.settle()
    world.advance(seconds=11)
    assert world.status["digests"] == {"code": [A, B]}
    for number in range(20):
        status["initContainerStatuses"][-1]["imageID"] = f"r/i@sha256:{number:064d}"
        world.settle()
        world.advance(seconds=11)
    assert len(world.status["digests"]["code"]) == 16
