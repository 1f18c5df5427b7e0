"""Namespaces by label: jobs are reconciled once the namespace gets the label, and left alone when it loses it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.harness.live import LiveCluster, live_cluster
from tests.harness.poison import spec
from tests.harness.resources import with_meta
from tests.unit.shell.operating import job, operating, until

from tfgpujob.core.observed.snapshot import Kind
from tfgpujob.shell.namespaces import Namespaces
from tfgpujob.shell.store import Key, Store


def label(cluster: LiveCluster, namespace: str, **labels: str) -> None:
    def write() -> None:
        held = cluster.server.get("Namespace", "", namespace)
        cluster.server.replace("Namespace", "", with_meta(held, labels=labels), by="admin")

    cluster.do(write)


def make(cluster: LiveCluster, namespace: str, name: str) -> None:
    cluster.do(lambda: cluster.server.place(job(name, namespace, spec(None))))


def runs(cluster: LiveCluster, namespace: str, name: str) -> bool:
    status = cluster.server.objects["TFGPUJob", namespace, name].get("status") or {}
    return bool(status.get("phase") == "Running")


@pytest.fixture
def cluster(tmp_path: Path) -> Any:
    with live_cluster(tmp_path, operator=False) as made:
        for namespace in ("team", "others"):
            body = {"metadata": {"name": namespace}}
            made.do(lambda body=body: made.server.create("Namespace", "", body, by="setup"))  # type: ignore[misc]
        yield made


@pytest.mark.slow
async def test_a_namespace_is_served_while_it_has_the_label(
    monkeypatch: pytest.MonkeyPatch, cluster: LiveCluster
) -> None:
    label(cluster, "team", gpu="yes")
    for namespace in ("team", "others"):
        make(cluster, namespace, "first")
    # Nothing is listed by the clock here: what is picked up, the watch has told.
    async with operating(monkeypatch, cluster, watch_namespace_selector="gpu", resync_seconds=600) as operator:
        await until(lambda: runs(cluster, "team", "first"), "the labelled namespace's job runs")
        assert "status" not in cluster.server.objects["TFGPUJob", "others", "first"]

        label(cluster, "others", gpu="")
        await until(lambda: runs(cluster, "others", "first"), "it is picked up when it gets the label")

        label(cluster, "team")
        make(cluster, "team", "second")
        make(cluster, "others", "second")
        await until(lambda: runs(cluster, "others", "second"), "a job that came after the label had gone runs")
        assert "status" not in cluster.server.objects["TFGPUJob", "team", "second"]
        assert cluster.pod("first-worker-0", "team")["status"]["phase"] == "Running"
        metrics = (await operator.get("/metrics"))[1].splitlines()
        assert "tfgpu_jobs 2.0" in metrics, "of the other nothing is kept"

        label(cluster, "team", gpu="again")
        await until(lambda: runs(cluster, "team", "second"), "and is served again")
        async with asyncio.timeout(30):
            while "tfgpu_jobs 4.0" not in (await operator.get("/metrics"))[1].splitlines():
                await asyncio.sleep(0.05)


def test_what_is_dropped_may_come_again() -> None:
    """As the same version: nothing has changed but whether we look."""
    namespaces = Namespaces(frozenset({"kube-system"}), selecting=True)
    store, body = Store(namespaces), {**job("a", "team", {}), "status": {}}
    body["metadata"] |= {"uid": "u", "resourceVersion": "5"}
    assert namespaces.selected is not None
    namespaces.selected |= {"team", "kube-system"}
    assert store.put(Kind.JOB, body) == Key("team", "a")
    assert store.put(Kind.JOB, {**body, "metadata": {**body["metadata"], "namespace": "kube-system"}}) is None
    assert store.drop("team") == [Key("team", "a")]
    assert store.jobs() == []
    assert store.put(Kind.JOB, body) == Key("team", "a")
