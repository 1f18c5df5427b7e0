"""The claims of volumeClaimTemplates in a job's life: one for each replica, made before its pod, and never deleted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.unit.core import make
from tests.unit.core.simulator import World

from tfgpujob.core.observed.snapshot import Creation, Kind, Snapshot
from tfgpujob.core.reconcile import reconcile


def role(replicas: int, **more: Any) -> dict[str, Any]:
    storage = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    mounts = [{"name": "cache", "mountPath": "/cache"}]
    return {
        "replicas": replicas,
        "volumeClaimTemplates": [{"metadata": {"name": "cache"}, "spec": storage}],
        "template": {"spec": {"containers": [{"name": "tensorflow", "volumeMounts": mounts}]}},
        **more,
    }


def started(**job: Any) -> World:
    return World.running(make.job(**job))


def claims(world: World) -> list[str]:
    return sorted(name for kind, name in world.objects if kind is Kind.CLAIM)


def mounted(world: World, pod: str) -> str:
    [volume] = [v for v in world.pod(pod)["spec"]["volumes"] if v["name"] == "cache"]
    return str(volume["persistentVolumeClaim"]["claimName"])


def test_each_pod_needs_its_own() -> None:
    creates = reconcile(Snapshot(make.job(worker=role(2))), make.START, make.CONFIG).creates
    needs = {create.name: [(n.kind, n.name) for n in create.needs] for create in creates}
    assert needs == {
        "train": [],
        "train-worker-0": [(Kind.CLAIM, "cache-train-worker-0")],
        "train-worker-1": [(Kind.CLAIM, "cache-train-worker-1")],
    }


def test_an_attempt_finds_those_of_the_one_before() -> None:
    world = started(worker=role(2))
    before = mounted(world, "train-worker-1")
    world.exits("train-worker-1", 137)
    world.advance(minutes=1)
    assert world.attempts() == {"2"}
    assert mounted(world, "train-worker-1") == before == "cache-train-worker-1"
    assert claims(world) == ["cache-train-worker-0", "cache-train-worker-1"]


def test_workers_that_left_find_theirs_when_they_come_back() -> None:
    world = started(worker=role(3, minReplicas=1, maxReplicas=4))
    world.edit(lambda spec: spec["replicaSpecs"]["worker"].update(replicas=1))
    assert len(world.pods) == 1
    assert len(claims(world)) == 3
    world.edit(lambda spec: spec["replicaSpecs"]["worker"].update(replicas=4))
    assert (mounted(world, "train-worker-2"), len(claims(world))) == ("cache-train-worker-2", 4)


def test_the_end_and_a_suspension_keep_them() -> None:
    world = started(worker=role(1), run={"cleanPodPolicy": "All"})
    world.suspend()
    assert (world.pods, claims(world)) == ([], ["cache-train-worker-0"])
    world.suspend(on=False)
    world.ready()
    world.exits("train-worker-0", 0)
    assert (world.phase, world.pods, claims(world)) == ("Succeeded", [], ["cache-train-worker-0"])


@pytest.mark.parametrize(("policy", "owned"), [(None, False), ("Retain", False), ("Delete", True)])
def test_only_those_that_go_with_the_job_are_owned_by_it(policy: str | None, owned: bool) -> None:
    more = {"persistentVolumeClaimRetentionPolicy": {"whenDeleted": policy}} if policy else {}
    world = started(worker=role(1, **more))
    metadata = world.objects[Kind.CLAIM, "cache-train-worker-0"]["metadata"]
    assert [owner["uid"] for owner in metadata.get("ownerReferences", ())] == ([make.JOB_UID] if owned else [])


def test_the_policy_may_be_edited_while_the_job_runs() -> None:
    world = started(worker=role(1))
    policy = {"persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Delete"}}
    world.edit(lambda spec: spec["replicaSpecs"]["worker"].update(policy))
    assert world.condition("Accepted") == "True/Valid"


@pytest.mark.parametrize(
    ("answer", "condition", "reason", "says"),
    [
        ((403, "exceeded quota: storage"), "Created", "QuotaExceeded", "PersistentVolumeClaim cache-train-worker-1"),
        ((403, "no right"), "Created", "Forbidden", "PersistentVolumeClaim cache-train-worker-1 was refused"),
        ((422, "no such mode"), "Accepted", "TemplateRefused", "spec.replicaSpecs.worker.volumeClaimTemplates"),
    ],
)
def test_a_claim_that_is_refused_is_told_and_holds_nothing(
    answer: tuple[int, str], condition: str, reason: str, says: str
) -> None:
    world = World(make.job(worker=role(2)))
    world.refuse = lambda create: answer if create.name == "cache-train-worker-1" else None
    world.settle()
    assert world.condition(condition) == f"False/{reason}"
    assert says in world.message(condition)
    assert (world.phase, world.pods) == ("Pending", [])


def test_a_refused_claim_is_tried_again_before_anything_else_is_created() -> None:
    world = World(make.job(worker=role(2)))
    world.refuse = lambda create: (403, "exceeded quota: x") if create.name == "cache-train-worker-1" else None
    world.settle()
    tried: list[str] = []

    def refuse(create: Creation) -> tuple[int, str] | None:
        tried.append(create.name)
        return (403, "exceeded quota: x") if create.name == "cache-train-worker-1" else None

    world.refuse = refuse
    world.advance(minutes=2)
    assert {*tried} == {"cache-train-worker-1"}
    world.refuse = lambda _: None
    world.advance(minutes=3)
    assert world.pods == ["train-worker-0", "train-worker-1"]


def test_an_evaluators_claim_that_is_refused_stops_nobody_else() -> None:
    world = World(make.job(worker=1, evaluator=role(1)))
    world.refuse = lambda create: (403, "exceeded quota: x") if create.kind is Kind.CLAIM else None
    world.settle()
    assert (world.pods, world.condition("Created")) == (["train-worker-0"], "True/QuotaExceeded")


def test_an_operator_without_the_right_says_so_at_once() -> None:
    config = replace(make.CONFIG, volume_claims=False)
    world = World.begun(make.job(worker=role(1)), config)
    assert (world.condition("Accepted"), world.tries) == ("False/InvalidSpec", 0)
    message = world.message("Accepted")
    assert "spec.replicaSpecs.worker.volumeClaimTemplates: " in message
    assert "volumeClaims.enabled" in message


def test_a_job_that_runs_goes_on_without_the_right() -> None:
    world = started(worker=role(1))
    world.start(replace(make.CONFIG, volume_claims=False))
    assert (world.condition("Accepted"), world.phase) == ("True/Valid", "Running")
