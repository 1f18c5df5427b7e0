"""A refusal is shown while other creates have no answer, and finalized when all have."""

from __future__ import annotations

import asyncio

import pytest
from tests.harness.vtime import virtual
from tests.unit.shell.make import job
from tests.unit.shell.rig import INTENT, KEY, STATUS, Brain, Rig, create_pod

from tfgpujob.core.observed.snapshot import (
    Create,
    Kind,
    Object,
    Outcome,
    StatusUpdate,
)
from tfgpujob.kube.errors import ApiError


@pytest.mark.parametrize(("hangs", "reported"), [(0.4, []), (0.6, ["train-worker-1"]), (40, ["train-worker-1"])])
@virtual
async def test_a_create_that_hangs_does_not_hide_the_refusal_of_another(hangs: float, reported: list[str]) -> None:
    creates = tuple(create_pod(f"train-worker-{i}") for i in range(3))
    brain = Brain(Outcome(intent=INTENT, creates=creates), StatusUpdate(status=STATUS))
    rig = Rig(brain, job())
    rig.cluster.hang = lambda call: hangs if call == "create Pod train-worker-0" else 0
    rig.refuse("create Pod train-worker-1", ApiError(403, "Forbidden", "no"))
    reconciling = asyncio.create_task(rig.worker.reconcile_once(KEY))
    await asyncio.sleep(0.55)
    assert rig.cluster.held(Kind.JOB, "train")["status"].get("refused", []) == reported
    assert await reconciling == "ok"
    assert brain.refusals is not None
    assert [refusal.name for refusal in brain.refusals] == ["train-worker-1"], "finalized when all is answered"
    assert rig.cluster.held(Kind.JOB, "train")["status"] == STATUS


@pytest.mark.parametrize("error", [ApiError(403, "Forbidden", "no"), ApiError(0, "Timeout", "no answer")])
@virtual
async def test_no_pod_is_asked_for_before_the_network_policy_is_there(error: ApiError) -> None:
    policy = Create(Kind.NETWORK_POLICY, {"metadata": {"name": "train", "namespace": "ns"}, "spec": {}})
    brain = Brain(Outcome(intent=INTENT, creates=(create_pod("train-worker-0"), policy)))
    rig = Rig(brain, job())
    rig.refuse("create NetworkPolicy", error)
    await rig.worker.reconcile_once(KEY)
    assert "create Pod train-worker-0" not in rig.cluster.calls
    rig.refuse("nothing", error)
    await rig.worker.reconcile_once(KEY)
    calls = rig.cluster.calls
    assert calls.index("create Pod train-worker-0") > calls.index("create NetworkPolicy train")


@virtual
async def test_a_later_refusal_is_shown_too_while_another_create_hangs() -> None:
    brain = Brain(Outcome(intent=INTENT, creates=tuple(create_pod(f"train-worker-{i}") for i in range(3))))
    rig = Rig(brain, job())
    answered = [asyncio.Event() for _ in range(3)]
    create = rig.cluster.create

    async def hang(kind: Kind, namespace: str, body: Object) -> Object:
        await answered[int(body["metadata"]["name"][-1])].wait()
        return await create(kind, namespace, body)

    rig.cluster.create = hang  # type: ignore[method-assign]
    rig.refuse("create Pod", ApiError(403, "Forbidden", "no"))
    reconciling = asyncio.create_task(rig.worker.reconcile_once(KEY))
    shown: list[str] = []
    for i in range(2):
        answered[i].set()
        shown.append(f"train-worker-{i}")
        async with asyncio.timeout(30):
            while rig.cluster.held(Kind.JOB, "train")["status"].get("refused") != shown:
                await asyncio.sleep(0.01)
    assert not reconciling.done()
    reconciling.cancel()


@virtual
async def test_who_stops_writes_no_refusal_any_more() -> None:
    brain = Brain(Outcome(intent=INTENT, creates=(create_pod("train-worker-0"), create_pod("train-worker-1"))))
    rig = Rig(brain, job())
    create, writing = rig.cluster.create, asyncio.Event()

    async def hang(kind: Kind, namespace: str, body: Object) -> Object:
        if body["metadata"]["name"] == "train-worker-1":
            await asyncio.Event().wait()
        return await create(kind, namespace, body)

    rig.cluster.create = hang  # type: ignore[method-assign]
    rig.refuse("create Pod", ApiError(403, "Forbidden", "no"))
    replace_status = rig.cluster.replace_status

    async def hang_too(body: Object, kind: Kind = Kind.JOB) -> Object:
        if "refused" in body["status"]:
            writing.set()
            await asyncio.Event().wait()
        return await replace_status(body, kind)

    rig.cluster.replace_status = hang_too  # type: ignore[method-assign]
    reconciling = asyncio.create_task(rig.worker.reconcile_once(KEY))
    await asyncio.wait_for(writing.wait(), 30)
    reconciling.cancel()
    await asyncio.wait([reconciling], timeout=30)
    assert reconciling.cancelled()
    assert {*asyncio.all_tasks()} == {asyncio.current_task()}, "something still writes"


def test_a_refusal_beside_a_create_that_fails_is_shown_and_finalizes_nothing() -> None:
    brain = Brain(Outcome(intent=INTENT, creates=(create_pod("train-worker-0"), create_pod("train-worker-1"))))
    rig = Rig(brain, job())

    def rule(call: str) -> None:
        if call.startswith("create"):
            raise ApiError(403, "Forbidden", "no") if call.endswith("1") else ApiError(0, "Timeout", "no answer")

    rig.cluster.refuse = rule
    assert rig.reconcile_once() == "error"
    assert rig.cluster.held(Kind.JOB, "train")["status"]["refused"] == ["train-worker-1"]
    assert brain.refusals is None
