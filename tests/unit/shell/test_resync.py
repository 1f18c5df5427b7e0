import asyncio
from dataclasses import replace

from tests.harness.known import snapshot_of
from tests.harness.scripted import ScriptedCluster
from tests.harness.vtime import virtual
from tests.unit.shell.make import job, pod

from tfgpujob.core.observed.snapshot import Kind
from tfgpujob.kube.errors import ApiError
from tfgpujob.kube.interface import ListPage
from tfgpujob.shell.resync import PAGE, Resync
from tfgpujob.shell.store import Key, Store

KEY = Key("ns", "train")


def resync(cluster: ScriptedCluster, store: Store, namespaces: tuple[str, ...] = ()) -> tuple[Resync, list[Key]]:
    changed: list[Key] = []
    return Resync(cluster, store, changed.append, namespaces=namespaces, random=lambda: 0.5), changed


@virtual
async def test_the_store_becomes_what_is_listed_and_only_labelled_pods_are_asked_for() -> None:
    cluster, store = ScriptedCluster(job(), pod()), Store()
    syncing, changed = resync(cluster, store)
    assert not syncing.synced.is_set()
    await syncing.first(lambda: None)
    assert syncing.synced.is_set()
    assert cluster.calls == [
        "list TFGPUJob *",
        "list Service * tfgpu.dev/job-name",
        "list Pod * tfgpu.dev/job-name",
    ]
    assert changed == [KEY, KEY]
    assert len(store.pods(KEY)) == 1
    assert syncing.versions[Kind.POD, None] == cluster.version
    await syncing.once()
    assert len(store.pods(KEY)) == 1


@virtual
async def test_network_policies_are_listed_where_jobs_get_one() -> None:
    cluster = ScriptedCluster(job())
    syncing = Resync(cluster, Store(), lambda _: None, namespaces=["ns"], random=lambda: 0.5, network_policies=True)
    await syncing.once()
    assert cluster.calls[1] == "list NetworkPolicy ns tfgpu.dev/job-name"


@virtual
async def test_pod_groups_of_the_gang_schedulers_in_use_are_listed() -> None:
    cluster, groups = ScriptedCluster(job()), [Kind.VOLCANO_POD_GROUP]
    syncing = Resync(cluster, Store(), lambda _: None, namespaces=["ns"], random=lambda: 0.5, pod_groups=groups)
    await syncing.once()
    assert cluster.calls[1] == f"list {Kind.VOLCANO_POD_GROUP} ns tfgpu.dev/job-name"

    def uninstalled(call: str) -> None:
        if call.startswith(f"list {Kind.VOLCANO_POD_GROUP}"):
            raise ApiError(404, "NotFound", "the server could not find the requested resource")

    cluster.refuse = uninstalled
    await syncing.once()
    assert cluster.calls[-1].startswith("list Pod "), "an uninstalled scheduler stops no other list"


@virtual
async def test_a_kind_that_is_not_served_for_a_moment_takes_no_admission_away() -> None:
    kind, labels = Kind.WORKLOAD_V1BETA1, {"tfgpu.dev/job-name": "train"}
    cluster, store = ScriptedCluster(job()), Store()
    held = {"metadata": {**job()["metadata"], "uid": "w", "resourceVersion": "1", "labels": labels}}
    store.put(kind, held)
    changed: list[Key] = []
    syncing = Resync(cluster, store, changed.append, namespaces=(), random=lambda: 0.5, kueue=kind)

    def not_served(call: str) -> None:
        if "kueue" in call:
            raise ApiError(404, "NotFound", "the server could not find the requested resource")

    cluster.refuse = not_served
    await syncing.once()
    assert snapshot_of(store, KEY).workload is not None
    cluster.refuse = lambda _: None
    await syncing.once()
    assert snapshot_of(store, KEY).workload is None, "served, and not there"


@virtual
async def test_what_vanished_unseen_is_found() -> None:
    cluster, store = ScriptedCluster(job()), Store()
    store.put(Kind.POD, pod(version=1))
    syncing, changed = resync(cluster, store)
    await syncing.once()
    assert store.pods(KEY) == ()
    assert KEY in changed


@virtual
async def test_what_was_created_while_a_list_was_under_way_stays() -> None:
    cluster, store = ScriptedCluster(job()), Store()
    syncing, _ = resync(cluster, store)

    def created_meanwhile(call: str) -> None:
        if call.startswith("list Pod"):
            store.put(Kind.POD, pod(version=999))

    cluster.before = created_meanwhile
    await syncing.once()
    assert len(store.pods(KEY)) == 1


@virtual
async def test_each_watched_namespace_is_listed_in_pages() -> None:
    cluster, store = ScriptedCluster(*(job(f"j{i:04}", uid=f"u{i}") for i in range(PAGE + 50))), Store()
    syncing, _ = resync(cluster, store, ("ns",))
    await syncing.once()
    assert [c for c in cluster.calls if "TFGPUJob" in c] == ["list TFGPUJob ns", "list TFGPUJob ns  more"]
    assert store.count()[Kind.JOB] == PAGE + 50


@virtual
async def test_what_the_first_list_has_is_not_listed_again_before_it_is_watched() -> None:
    cluster, store = ScriptedCluster(job()), Store()
    syncing, _ = resync(cluster, store)
    await syncing.first(lambda: None)
    assert await syncing.relisted(Kind.JOB, None) == cluster.version
    assert cluster.calls.count("list TFGPUJob *") == 1
    await syncing.relisted(Kind.JOB, None)
    assert cluster.calls.count("list TFGPUJob *") == 2, "whoever asks again has lost the thread"


@virtual
async def test_after_a_page_that_was_too_long_the_next_ones_begin_small() -> None:
    class Long(ScriptedCluster):
        limits: list[int]

        async def list(
            self, kind: Kind, namespace: str | None, *, selector: str = "", limit: int = 500, token: str = ""
        ) -> ListPage:
            self.limits.append(limit)
            fits = min(limit, 1) if len(self.limits) == 1 else limit
            page = await super().list(kind, namespace, selector=selector, limit=fits, token=token)
            return replace(page, limit=fits)

    cluster, store = Long(*(job(f"j{i:04}", uid=f"u{i}") for i in range(2 * PAGE))), Store()
    cluster.limits = []
    await resync(cluster, store)[0].list(Kind.JOB, None)
    assert cluster.limits == [PAGE, 2, 4, 8, 16, 32, 64, PAGE]
    assert store.count()[Kind.JOB] == 2 * PAGE


@virtual
async def test_a_failing_list_is_tried_until_it_succeeds() -> None:
    cluster, store = ScriptedCluster(job()), Store()
    left = [ApiError(404, "NotFound", "no such resource"), ApiError(0, "Unreachable", "refused")]

    def refuse(call: str) -> None:
        if left:
            raise left.pop()

    cluster.refuse = refuse
    await resync(cluster, store)[0].first(lambda: None)
    assert asyncio.get_running_loop().time() == 4.0


@virtual
async def test_a_round_lists_after_the_interval_and_has_every_job_looked_at() -> None:
    cluster, store = ScriptedCluster(job()), Store()
    syncing, changed = resync(cluster, store)
    await syncing.first(lambda: None)
    changed.clear()
    task = asyncio.create_task(syncing.run(300, lambda: None))
    await asyncio.sleep(299)
    assert changed == []
    await asyncio.sleep(2)
    assert changed == [KEY]
    task.cancel()


@virtual
async def test_an_object_that_cannot_be_understood_does_not_hide_the_others() -> None:
    cluster, store = ScriptedCluster(job(), pod()), Store()
    broken = pod("train-worker-1", uid="broken")
    broken["status"] = {"conditions": "not a list of conditions"}
    cluster.server.place(broken)
    await resync(cluster, store)[0].once()
    assert [p.name for p in store.pods(KEY)] == ["train-worker-0"]
