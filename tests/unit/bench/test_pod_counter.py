"""tests/bench/pod_counter.py: each pod counts once, however often the watch is cut."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from tests.bench.pod_counter import PodCounter
from tests.harness.live import LiveCluster
from tests.machine import PATIENCE
from tests.unit.bench.rig import connected

CONTAINERS = [{"name": "main", "image": "i"}]


def create(cluster: LiveCluster, *names: str) -> None:
    def made() -> None:
        for name in names:
            body: dict[str, Any] = {"metadata": {"name": name}, "spec": {"containers": CONTAINERS}}
            cluster.server.create("Pod", "default", body, by="user")

    cluster.do(made)


def delete(cluster: LiveCluster, name: str) -> None:
    cluster.do(lambda: cluster.server.delete("Pod", "default", name, grace=0, by="user"))


async def until_deleted(pods: PodCounter, total: int) -> None:
    async with asyncio.timeout(PATIENCE):
        while len(pods.deleted) < total:
            await asyncio.sleep(0.01)


def ended(cluster: LiveCluster) -> None:
    cluster.front.end_watches()


def aborted(cluster: LiveCluster) -> None:
    cluster.front.hang_up()


def forgotten(cluster: LiveCluster) -> None:
    cluster.server.history.compact()
    cluster.front.hang_up()


@pytest.mark.parametrize(("cut", "told"), [(ended, 0), (aborted, 1), (forgotten, 2)])
async def test_no_pod_is_lost_or_counted_twice(
    cut: Callable[[LiveCluster], None], told: int, cluster: LiveCluster
) -> None:
    """What happens while the watch is away: two pods come, one of those that were there goes."""
    create(cluster, "before")
    async with connected() as kube:
        pods = PodCounter(kube, "default")
        async with pods.running():
            create(cluster, "a", "b", "short-lived")
            await pods.until_created(3, PATIENCE)
            delete(cluster, "short-lived")
            await until_deleted(pods, 1)

            def away() -> None:
                cut(cluster)
                for name in ("c", "d"):
                    spec = {"containers": CONTAINERS}
                    cluster.server.create("Pod", "default", {"metadata": {"name": name}, "spec": spec}, by="user")
                cluster.server.delete("Pod", "default", "a", grace=0, by="user")
                if cut is forgotten:
                    cluster.server.history.compact()

            cluster.do(away)
            await pods.until_created(5, PATIENCE)
            create(cluster, "e")
            await pods.until_created(6, PATIENCE)
            assert (pods.created, pods.deleted) == (6, ["short-lived", "a"])
            assert pods.requests == (3 if cut is forgotten else 2)
            assert len(pods.cuts) == told
            assert all(text.startswith("the watch of pods was cut: ") for text in pods.cuts)


async def test_a_pod_of_the_same_name_is_another(cluster: LiveCluster) -> None:
    async with connected() as kube:
        pods = PodCounter(kube, "default")
        async with pods.running():
            create(cluster, "a")
            delete(cluster, "a")
            create(cluster, "a")
            await pods.until_created(2, PATIENCE)
            assert pods.deleted == ["a"]


async def test_what_we_clear_ourselves_is_no_disturbance(cluster: LiveCluster) -> None:
    async with connected() as kube:
        pods = PodCounter(kube, "default")
        async with pods.running():
            create(cluster, "a")
            await pods.until_created(1, PATIENCE)
            async with pods.clearing():
                delete(cluster, "a")
            create(cluster, "b")
            delete(cluster, "b")
            await until_deleted(pods, 1)
            assert pods.deleted == ["b"]


async def test_pods_that_do_not_come_are_counted(cluster: LiveCluster) -> None:
    async with connected() as kube:
        pods = PodCounter(kube, "default")
        async with pods.running():
            create(cluster, "a")
            await pods.until_created(1, PATIENCE)
            with pytest.raises(TimeoutError, match=r"not within 0.05 s: 2 pods that were asked for are missing"):
                await pods.until_created(3, 0.05)
