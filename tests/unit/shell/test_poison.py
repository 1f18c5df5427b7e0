"""One stranger's object costs only its owner: the whole operator, over HTTP, among poisoned objects."""

from __future__ import annotations

import asyncio
import time
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.harness.live import LiveCluster, live_cluster
from tests.harness.poison import ODD, POISONS, spec
from tests.machine import Deadline
from tests.unit.shell.operating import STRANGERS, job, make_good, operating, runs, until

from tfgpujob.core.observed.snapshot import Config, Outcome, Snapshot
from tfgpujob.core.policies import quarantine
from tfgpujob.core.reconcile import reconcile
from tfgpujob.shell import main


def poison(cluster: LiveCluster, name: str, text: str) -> None:
    placeholder = f"stands for {name}"
    cluster.front.raw[placeholder] = text
    cluster.do(lambda: cluster.server.place(job(name, STRANGERS, spec(placeholder))))


def accepted(cluster: LiveCluster, name: str) -> tuple[str, str]:
    status = cluster.server.objects["TFGPUJob", STRANGERS, name].get("status") or {}
    found = {c["type"]: c for c in status.get("conditions") or ()}.get("Accepted", {})
    return found.get("status", ""), found.get("message", "")


def refused(cluster: LiveCluster, name: str) -> bool:
    return accepted(cluster, name)[0] == "False"


@pytest.fixture
def cluster(tmp_path: Path) -> Any:
    with live_cluster(tmp_path, operator=False) as made:
        made.do(lambda: made.server.create("Namespace", "", {"metadata": {"name": STRANGERS}}, by="setup"))
        yield made


@pytest.mark.slow
async def test_a_restarted_operator_lists_what_strangers_have_poisoned(
    monkeypatch: pytest.MonkeyPatch, cluster: LiveCluster
) -> None:
    make_good(cluster, "good")
    for name, text in (POISONS | ODD).items():
        poison(cluster, name, text)
    cluster.do(lambda: cluster.server.place(job("list", STRANGERS, [1])))
    cluster.do(lambda: cluster.server.place(job("text", STRANGERS, "text")))
    async with operating(monkeypatch, cluster) as operator:
        await until(lambda: runs(cluster, "good"), "the good job runs")
        for name in [*POISONS, "list", "text"]:
            await until(partial(refused, cluster, name), f"{name} is refused")
        for name in POISONS:
            assert accepted(cluster, name)[1].startswith(("spec: is nested", "spec: has more than")), name
        status, text = await operator.get("/readyz")
        assert status == 200
        assert all(f"unreadable: TFGPUJob {STRANGERS}/{name}: spec: " in text for name in POISONS), text
        assert "good" not in text
        metrics = (await operator.get("/metrics"))[1].splitlines()
        assert f"tfgpu_objects_unreadable {len(POISONS):.1f}" in metrics


@pytest.mark.slow
async def test_a_leader_that_runs_goes_on_listing_and_watching(
    monkeypatch: pytest.MonkeyPatch, cluster: LiveCluster
) -> None:
    lists: list[str] = []

    def seen(method: str, path: str) -> None:
        if method == "GET":
            lists.append(path)

    cluster.front.refuse = seen
    make_good(cluster, "first")
    async with operating(monkeypatch, cluster) as operator:
        await until(lambda: runs(cluster, "first"), "the first job runs")
        for name, text in (POISONS | ODD).items():
            poison(cluster, name, text)
        make_good(cluster, "second")
        await until(lambda: runs(cluster, "second"), "the second job runs")
        before = lists.count("/api/v1/pods")
        await until(lambda: lists.count("/api/v1/pods") > before + 2, "pods, which come after jobs, are listed")
        assert (await operator.get("/healthz")) == (200, "ok")
        for name in POISONS:
            await until(partial(refused, cluster, name), f"{name} is refused")
        # Deleted, it is named no more.
        for name in POISONS:
            cluster.do(partial(cluster.server.delete, "TFGPUJob", STRANGERS, name, by="test"))
        deadline = Deadline(30)
        while (await operator.get("/readyz"))[1] != "ok":
            assert not deadline.passed, "they are still named"
            await asyncio.sleep(0.05)


async def test_a_job_that_runs_and_is_edited_beyond_reading_goes_on(
    monkeypatch: pytest.MonkeyPatch, cluster: LiveCluster
) -> None:
    make_good(cluster, "edited")
    async with operating(monkeypatch, cluster):
        await until(lambda: runs(cluster, "edited"), "the job runs")
        pod = cluster.pod("edited-worker-0")["metadata"]["uid"]
        cluster.front.raw["deep"] = POISONS["arrays-10000"]

        def edit() -> None:
            held = cluster.server.get("TFGPUJob", "default", "edited")
            cluster.server.replace("TFGPUJob", "default", {**held, "spec": spec("deep")}, by="author")

        def edit_refused() -> bool:
            status = cluster.server.objects["TFGPUJob", "default", "edited"]["status"]
            return any(c["type"] == "Accepted" and c["status"] == "False" for c in status["conditions"])

        cluster.do(edit)
        await until(edit_refused, "the edit is refused")
        assert runs(cluster, "edited")
        assert cluster.pod("edited-worker-0")["metadata"]["uid"] == pod


async def test_a_job_whose_reconciliation_raises_is_named_and_blocks_nobody(
    monkeypatch: pytest.MonkeyPatch, cluster: LiveCluster
) -> None:
    def broken(snapshot: Snapshot, now: datetime, config: Config) -> Outcome:
        if snapshot.job["metadata"]["name"] == "bad":
            raise KeyError("a fault of ours")
        return reconcile(snapshot, now, config)

    monkeypatch.setattr(main, "reconcile", broken)
    cluster.do(lambda: cluster.server.place(job("bad", STRANGERS, spec(None))))
    make_good(cluster, "good")
    async with operating(monkeypatch, cluster) as operator:

        async def until_told(line: str, metric: str) -> None:
            deadline = Deadline(30)
            while (await operator.get("/readyz")) != (200, line) or metric not in await figures():
                assert not deadline.passed, f"not in time: {line}, {metric}"
                await asyncio.sleep(0.05)

        async def figures() -> list[str]:
            return (await operator.get("/metrics"))[1].splitlines()

        await until(lambda: runs(cluster, "good"), "the good job runs")
        named = "ok\nfailing: TFGPUJob strangers/bad: KeyError: 'a fault of ours'"
        await until_told(named, "tfgpu_jobs_failing 1.0")
        assert "tfgpu_reconciles_raised_total 0.0" not in await figures()
        assert await operator.get("/healthz") == (200, "ok")
        cluster.do(lambda: cluster.server.delete("TFGPUJob", STRANGERS, "bad", by="test"))
        await until_told("ok", "tfgpu_jobs_failing 0.0")


async def test_a_job_whose_reconciliation_is_slow_is_set_aside_until_it_is_small(
    monkeypatch: pytest.MonkeyPatch, cluster: LiveCluster
) -> None:
    large = True

    def slow(snapshot: Snapshot, now: datetime, config: Config) -> Outcome:
        began = time.thread_time()
        bad = snapshot.job["metadata"]["name"] == "bad"
        while bad and large and not snapshot.quarantined and time.thread_time() - began < 0.3:
            pass
        return reconcile(snapshot, now, config)

    def says(status: str) -> bool:
        found = cluster.server.objects["TFGPUJob", STRANGERS, "bad"].get("status") or {}
        return any(c["type"] == "Quarantined" and c["status"] == status for c in found.get("conditions") or ())

    monkeypatch.setattr(main, "reconcile", slow)
    monkeypatch.setattr(quarantine, "SLOW_SECONDS", 0.15)
    monkeypatch.setattr(quarantine, "FIRST", timedelta(seconds=1))
    cluster.do(lambda: cluster.server.place(job("bad", STRANGERS, spec(None))))
    async with operating(monkeypatch, cluster) as operator:
        await until(lambda: says("True"), "it is set aside")
        make_good(cluster, "good")
        await until(lambda: runs(cluster, "good"), "the good job runs")
        assert f"quarantined: TFGPUJob strangers/bad: {quarantine.SLOW}" in (await operator.get("/readyz"))[1]
        assert "tfgpu_jobs_quarantined 1.0" in (await operator.get("/metrics"))[1]
        large = False
        await until(lambda: says("False"), "it has left by itself")
        assert await operator.get("/readyz") == (200, "ok")


async def test_a_job_in_a_namespace_that_is_left_out_is_as_if_it_were_not_there(
    monkeypatch: pytest.MonkeyPatch, cluster: LiveCluster
) -> None:
    """Who may make jobs in kube-system must not get pods there by way of the operator."""
    cluster.do(lambda: cluster.server.place(job("before", STRANGERS, spec(None))))
    poison(cluster, "deep", POISONS["arrays-10000"])
    make_good(cluster, "good")
    async with operating(monkeypatch, cluster, exclude_namespaces=frozenset({STRANGERS})) as operator:
        await until(lambda: runs(cluster, "good"), "the good job runs")
        cluster.do(lambda: cluster.server.place(job("after", STRANGERS, spec(None))))
        make_good(cluster, "last")
        await until(lambda: runs(cluster, "last"), "a job that came after it runs")
        assert await operator.get("/readyz") == (200, "ok")
    for name in ("before", "after", "deep"):
        assert "status" not in cluster.server.objects["TFGPUJob", STRANGERS, name]
    assert {key[1] for key in cluster.server.objects if key[0] == "Pod"} == {"default"}
