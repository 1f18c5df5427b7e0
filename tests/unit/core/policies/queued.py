"""A job of a queue of Kueue."""

from __future__ import annotations

from typing import Any

from tests.unit.core.simulator import World

from tfgpujob.core.observed.snapshot import Kind

WORKLOAD = Kind.WORKLOAD_V1BETA1


def workload(world: World) -> dict[str, Any]:
    return world.objects[WORKLOAD, "train"]


def relabel(world: World, **labels: str) -> None:
    assert world.job is not None
    world.job["metadata"]["labels"] = labels
    world.settle()
