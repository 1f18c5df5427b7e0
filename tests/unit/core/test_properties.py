"""What holds whatever comes: random pods, random orders, random stories."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.core import make
from tests.unit.core.simulator import World

from tfgpujob.api import JobStatus
from tfgpujob.core.observed.snapshot import Dependent, Kind, Pod, Snapshot
from tfgpujob.core.pods.tf_config import Address, tf_config
from tfgpujob.core.reconcile import finalize_status, reconcile
from tfgpujob.core.status.builder import timestamp
from tfgpujob.names import Condition, Role
from tfgpujob_contract.strategies import Strategy

JOBS = st.one_of(
    st.builds(
        lambda chief, worker, evaluator: make.job(chief=chief, worker=worker, evaluator=evaluator),
        st.integers(0, 1), st.integers(1, 5), st.integers(0, 1),
    ),
    st.builds(
        lambda strategy, worker, ps, evaluator: make.job(strategy, worker=worker, ps=ps, evaluator=evaluator),
        st.sampled_from(["ParameterServer", "Custom"]), st.integers(1, 5), st.integers(1, 4), st.integers(0, 1),
    ),
)  # fmt: skip


def addresses(cluster: dict[str, Any]) -> dict[tuple[str, int], str]:
    """What a task knows: the address of each (role, index), from a full list or a sparse map."""
    return {
        (role, int(index)): address
        for role, tasks in cluster.items()
        for index, address in (tasks.items() if isinstance(tasks, dict) else enumerate(tasks))
    }


@given(JOBS)
def test_all_tasks_of_an_attempt_agree_on_every_address_that_they_both_know(job: dict[str, Any]) -> None:
    plan, strategy = make.plan(job), Strategy(job["spec"]["strategy"])
    known: dict[tuple[str, int], str] = {}
    for role, index in plan.members.pods:
        config = json.loads(tf_config(strategy, plan, Address("train", "ns"), role, index) or "{}")
        mine = addresses(config["cluster"])
        assert all(known.get(task, address) == address for task, address in mine.items())
        known |= mine
        task = config["task"]
        assert mine[task["type"], task["index"]] == f"train-{role}-{index}.train.ns.svc:2222", "each knows itself"
        assert ("evaluator", 0) not in mine or role is Role.EVALUATOR


def pods() -> st.SearchStrategy[Pod]:
    """Any pod that may have the job's label: ours, an earlier job's, another owner's, in any state."""
    names = [f"train-{role}-{index}" for role in ("chief", "worker", "evaluator") for index in range(3)]
    ends = st.one_of(st.none(), st.sampled_from([0, 1, 137, 160]))

    def build(name: str, exit_code: int | None, **fields: Any) -> Pod:
        ended = {} if exit_code is None else {"exit": exit_code, "at": timestamp(make.START)}
        return make.pod(name, **ended, **{k: v for k, v in fields.items() if v is not None})

    return st.builds(
        build,
        st.sampled_from(names),
        ends,
        attempt=st.integers(0, 3),
        owner_uid=st.sampled_from([make.JOB_UID, make.JOB_UID, make.JOB_UID, "an-earlier-job", ""]),
        deleting=st.booleans(),
        phase=st.sampled_from([None, None, "Pending", "Failed", "Unknown"]),
        status_reason=st.sampled_from([None, "Evicted", "NodeLost"]),
        disruption=st.sampled_from(["", "DisruptionTarget", "PreemptionByScheduler"]),
    )


SERVICES = st.one_of(
    st.none(),
    st.builds(
        lambda owner, deleting: Dependent("train", "uid", "1", owner, "train" if owner else "", deleting),
        st.sampled_from([make.JOB_UID, "an-earlier-job", ""]),
        st.booleans(),
    ),
)
RUN = st.fixed_dictionaries(
    {},
    optional={
        "suspend": st.booleans(),
        "backoffLimit": st.integers(0, 2),
        "activeDeadlineSeconds": st.integers(1, 100),
        "startDeadlineSeconds": st.integers(1, 100),
        "startPolicy": st.sampled_from(["Retry", "Fail"]),
        "cleanPodPolicy": st.sampled_from(["Auto", "None", "Running", "All"]),
        "ttlSecondsAfterFinished": st.integers(0, 100),
    },
)


def statuses() -> st.SearchStrategy[dict[str, Any]]:
    """Statuses that a job may have had on its way: those of a whole life with a restart and an end."""
    world = World.running(make.job(worker=2, evaluator=1))
    world.exits("train-worker-0", 137)
    world.advance(minutes=2)
    world.ready()
    world.suspend()
    world.suspend(False)
    world.ready()
    world.exits("train-worker-0", 0)
    world.exits("train-worker-1", 0)
    return st.sampled_from([{}, *world.writes])


def is_complete(status: dict[str, Any]) -> bool:
    return any(c["type"] == Condition.CREATED and c["status"] == "True" for c in status.get("conditions", ()))


@settings(max_examples=300)
@given(
    RUN,
    statuses(),
    st.lists(pods(), max_size=6, unique_by=lambda pod: pod.name),
    SERVICES,
    st.integers(0, 200),
    st.data(),
)
def test_no_set_of_pods_in_no_order_makes_it_raise_and_what_it_decides_is_safe(
    run: dict[str, Any],
    status: dict[str, Any],
    found: list[Pod],
    service: Dependent | None,
    seconds: int,
    data: st.DataObject,
) -> None:
    job = {**make.job(worker=2, evaluator=1, run=run), "status": status}
    now = make.START + timedelta(seconds=seconds)
    absent = frozenset(f"train-worker-{index}" for index in range(2)) - {pod.name for pod in found}
    snapshot = Snapshot(job, tuple(found), service, absent)
    snapshot = replace(snapshot, looked_up=absent | {pod.name for pod in found})
    outcome = reconcile(snapshot, now, make.CONFIG)
    by_uid = {pod.uid: pod for pod in found}

    assert set(outcome.lookups) <= {f"train-worker-{index}" for index in range(2)}
    for delete in outcome.deletes:
        if delete.kind is Kind.POD:
            pod = by_uid[delete.uid]
            assert pod.owner_uid == make.JOB_UID, "nobody else's pod"
            assert not pod.deleting
        else:
            assert delete.kind is Kind.JOB
    creates, foreign = {create.name for create in outcome.creates}, {pod.name for pod in found if not pod.owner_uid}
    assert not creates & ({pod.name for pod in found} - foreign), "never two pods of one name"
    # A pod whose name is taken is refused alone: an evaluator always, any other beside an attempt that is complete.
    assert creates & foreign <= {"train-evaluator-0"} or is_complete(status), "never half a gang"
    assert len({create.name for create in outcome.creates}) == len(outcome.creates)
    if outcome.requeue_at is not None:
        assert outcome.requeue_at >= now
    if outcome.status is not None:
        JobStatus.model_validate(outcome.status)
        json.dumps(outcome.status)
        finalize_status(snapshot, outcome, (), now, make.CONFIG)
    for body in (create.body for create in outcome.creates):
        json.dumps(body)

    shuffled = replace(snapshot, pods=tuple(data.draw(st.permutations(found))))
    again = reconcile(shuffled, now, make.CONFIG)
    assert {delete.uid for delete in again.deletes} == {delete.uid for delete in outcome.deletes}
    assert [create.name for create in again.creates] == [create.name for create in outcome.creates]


Step = Callable[[World], None]


def steps() -> st.SearchStrategy[Step]:
    workers = st.sampled_from(["train-worker-0", "train-worker-1", "train-evaluator-0", "train-chief-0", "train-ps-0"])

    def on(name: str, act: Callable[[World, str], None]) -> Step:
        def step(world: World) -> None:
            if (Kind.POD, name) in world.objects:
                act(world, name)

        return step

    def refuse(code: int | None) -> Step:
        def step(world: World) -> None:
            world.refuse = lambda create: (code, "exceeded quota: q") if code and create.kind is Kind.POD else None
            world.settle()

        return step

    return st.one_of(
        st.builds(lambda name: on(name, lambda w, n: w.ready(n)), workers),
        st.builds(
            lambda name, code: on(name, lambda w, n: w.exits(n, code)), workers, st.sampled_from([0, 0, 1, 137, 160])
        ),
        st.builds(lambda name: on(name, lambda w, n: w.evict(n)), workers),
        st.builds(lambda name: on(name, lambda w, n: w.remove(Kind.POD, n)), workers),
        st.builds(lambda name: on(name, lambda w, n: w.mark_deleting(n)), workers),
        st.builds(lambda on: lambda world: world.suspend(on), st.booleans()),
        st.builds(lambda image: lambda world: world.edit(lambda s: s.update(image=image)), st.sampled_from(["a", "b"])),
        st.builds(refuse, st.sampled_from([None, None, 403, 422])),
        st.builds(lambda seconds: lambda world: world.advance(seconds=seconds), st.sampled_from([1, 15, 100, 3600])),
        st.just(lambda world: world.stop()),
        st.just(lambda world: world.start()),
        st.just(lambda world: world.ready()),
    )


@pytest.mark.slow
@settings(max_examples=150)
@given(
    st.sampled_from([{"worker": 2}, {"strategy": "ParameterServer", "worker": 2, "ps": 1}]),
    st.lists(steps(), max_size=25),
)
def test_every_story_settles_and_keeps_the_promises(roles: dict[str, Any], story: list[Step]) -> None:
    """`World` checks at every look what must always hold; here it is that work ends, and nothing is left undone."""
    strategy = roles.get("strategy", "MultiWorkerMirrored")
    counts = {role: count for role, count in roles.items() if role != "strategy"}
    run = {"backoffLimit": 2, "startDeadlineSeconds": 1_000_000}
    world = World.begun(make.job(strategy, **counts, evaluator=1, run=run))
    for step in story:
        if world.job is not None:
            step(world)
    world.start()
    world.refuse = lambda _: None
    for name in world.pods:
        if name in world.pods and "deletionTimestamp" in world.pod(name)["metadata"]:
            world.remove(Kind.POD, name)
    world.advance(minutes=30)
    assert len(world.attempts()) <= 1, "one attempt at a time"
    before = len(world.writes), world.tries, len(world.deletes)
    world.settle()
    world.advance(minutes=10)
    assert before == (len(world.writes), world.tries, len(world.deletes)), "at rest, it rests"
    ready_or_over = {"Running", "Starting", "Restarting", "Suspended", "Succeeded", "Failed"}
    waiting_for_edit = any(world.condition(kind).endswith("/TemplateRefused") for kind in ("Accepted", "Created"))
    edited = world.condition("Accepted") == "False/ImmutableFieldChanged"
    assert world.phase in ready_or_over or waiting_for_edit or edited
    if world.phase in {"Starting", "Running"} and not edited and not waiting_for_edit:
        assert {"train-worker-0", "train-worker-1"} <= set(world.pods) | _through(world)


def _through(world: World) -> set[str]:
    recorded = world.status["replicaStatuses"]["worker"].get("succeededIndexes", [])
    return {f"train-worker-{index}" for index in recorded}
