"""Whole lives of a job, as the core leads them: what is written, created and deleted, in which order and how often."""

from __future__ import annotations

import pytest
from tests.unit.core import make
from tests.unit.core.simulator import World

from tfgpujob.core.observed.snapshot import Creation, Kind, Outcome, Snapshot
from tfgpujob.core.reconcile import COALESCE, reconcile


@pytest.mark.parametrize("pods", [1, 2, 4, 16])
def test_a_fault_free_job_costs_its_pods_one_service_three_status_writes_and_two_events(pods: int) -> None:
    world = World.begun(make.job(worker=pods))
    for index in range(pods):
        world.ready(f"train-worker-{index}")
        world.advance(milliseconds=100)
    world.advance(hours=1)
    for index in range(pods):
        world.exits(f"train-worker-{index}", 0)
        world.advance(milliseconds=100)
    world.advance(hours=1)

    assert [status["phase"] for status in world.writes] == ["Starting", "Running", "Succeeded"]
    assert [event.reason for event in world.events] == ["Created", "Succeeded"]
    assert len(world.creates) == pods + 1
    assert world.deletes == []
    assert world.status["replicaStatuses"]["worker"] == {
        "desired": pods,
        "ready": 0,
        "active": 0,
        "succeeded": pods,
        "failed": 0,
        "succeededIndexes": list(range(pods)),
    }


def test_a_restart_costs_two_writes_and_two_events() -> None:
    world = World.running(make.job(worker=4))
    world.advance(hours=1)
    writes, events = len(world.writes), len(world.events)
    world.exits("train-worker-3", 137)
    while not world.pods:
        world.advance(seconds=1)
    world.ready()
    world.advance(minutes=1)
    assert [status["phase"] for status in world.writes[writes:]] == ["Restarting", "Running"]
    assert [event.reason for event in world.events[events:]] == ["Restarting", "Created"]


def test_an_operator_that_restarts_writes_nothing() -> None:
    world = World.running(make.job())
    world.advance(minutes=1)
    writes = len(world.writes)
    world.stop()
    world.start()
    world.advance(hours=1)
    assert len(world.writes) == writes


def test_small_changes_wait_a_moment_for_each_other() -> None:
    world = World.begun(make.job(worker=4))
    world.ready("train-worker-0")
    world.ready("train-worker-1")
    assert len(world.writes) == 1
    world.advance(seconds=COALESCE.total_seconds())
    assert len(world.writes) == 2
    assert world.status["ready"] == "2/4"
    assert world.condition("Created") == "True/AllCreated"


@pytest.mark.parametrize(
    "change",
    [
        {"metadata": {**make.job()["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}},
        {"spec": make.job(run={"managedBy": "example.com/other"})["spec"]},
    ],
    ids=["being deleted", "another controller's"],
)
def test_what_is_not_ours_to_run_is_left_alone(change: dict[str, object]) -> None:
    assert reconcile(Snapshot({**make.job(), **change}), make.START, make.CONFIG) == Outcome()


def test_our_own_name_in_managed_by_means_us() -> None:
    world = World.begun(make.job(run={"managedBy": "tfgpu.dev/operator"}))
    assert world.phase == "Starting"


def quota(create: Creation) -> tuple[int, str] | None:
    message = f'pods "{create.name}" is forbidden: exceeded quota: gpus, requested: 1, used: 2, limited: 2'
    return (403, message) if create.kind is Kind.POD and create.name >= "train-worker-2" else None


def test_quota_holds_nothing_says_so_and_succeeds_once_there_is_room() -> None:
    world = World(make.job(worker=4))
    world.refuse = quota
    world.settle()
    assert world.pods == []
    assert world.condition("Created") == "False/QuotaExceeded"
    assert "exceeded quota: gpus" in world.message("Created")
    assert world.phase == "Pending"

    world.advance(hours=2)
    assert world.pods == []
    assert world.condition("Created") == "False/QuotaExceeded"
    assert [event.reason for event in world.events] == ["QuotaExceeded"], "said once"
    tries = world.tries
    world.advance(hours=1)
    assert 40 <= world.tries - tries <= 90, "about once a minute, and one pod at a time"

    world.refuse = lambda _: None
    world.advance(seconds=80)
    assert len(world.pods) == 4
    assert world.attempts() == {str(world.status["attempt"])}
    assert world.condition("Created") == "True/AllCreated"
    world.ready()
    assert world.phase == "Running"
    assert "retry" not in world.status
    assert world.status.get("restarts", 0) == 0


def test_pods_that_a_refused_start_had_created_go_at_once() -> None:
    world = World(make.job(worker=4))
    world.refuse = quota
    world.settle()
    assert {"train-worker-0", "train-worker-1"} <= set(world.creates)
    assert {"train-worker-0", "train-worker-1"} == {delete.name for delete in world.deletes}


def test_a_template_that_is_refused_waits_for_an_edit() -> None:
    world = World(make.job(worker=2))
    world.refuse = lambda create: (422, "spec.containers[0].image: Required value") if create.kind is Kind.POD else None
    world.settle()
    tries = world.tries
    world.advance(days=2)
    assert world.tries == tries, "only an edit helps"
    assert world.pods == []
    assert world.condition("Created") == "False/TemplateRefused"
    assert "spec.replicaSpecs" in world.message("Created")

    world.refuse = lambda _: None
    world.edit(lambda spec: spec.update(image="better:1"))
    assert len(world.pods) == 2
    world.ready()
    assert world.phase == "Running"


@pytest.mark.parametrize("kind", [Kind.POD, Kind.SERVICE])
@pytest.mark.parametrize("labelled", [True, False])
def test_a_name_that_is_taken_is_said_and_checked_until_it_is_free(kind: Kind, labelled: bool) -> None:
    name = "train-worker-1" if kind is Kind.POD else "train"
    labels = {"tfgpu.dev/job-name": "train"} if labelled else {}
    world = World(make.job(worker=2))
    world.put(kind, {"metadata": {"name": name, "labels": labels}})
    assert world.condition("Accepted") == "False/NameTaken"
    assert name in world.message("Accepted")
    assert world.pods in ([], [name])
    assert world.phase == "Pending"

    world.advance(hours=1)
    looks, tries, writes = world.looks, world.tries, len(world.writes)
    world.advance(hours=1)
    assert 0 < world.looks - looks < 600, "no hot loop"
    assert world.tries - tries < 200
    assert len(world.writes) - writes < 200
    assert world.condition("Accepted") == "False/NameTaken", "never terminal"

    world.remove(kind, name)
    world.advance(minutes=1)
    assert world.condition("Accepted") == "True/Valid"
    world.ready()
    assert world.phase == "Running"


def test_a_running_job_survives_that_its_services_name_is_taken() -> None:
    world = World.running(make.job())
    world.advance(minutes=1)
    world.stop()
    world.remove(Kind.SERVICE, "train")
    world.put(Kind.SERVICE, {"metadata": {"name": "train"}})
    world.start()
    looks = world.looks
    world.advance(hours=2)
    assert world.looks - looks < 600
    assert world.condition("Accepted") == "False/NameTaken"
    assert world.condition("Running") == "True/AllReady"
    assert world.attempts() == {"1"}
    world.remove(Kind.SERVICE, "train")
    world.advance(minutes=1)
    assert world.condition("Accepted") == "True/Valid"
    assert (Kind.SERVICE, "train") in world.objects


def test_a_service_that_was_deleted_comes_back() -> None:
    world = World.running(make.job())
    world.remove(Kind.SERVICE, "train")
    assert (Kind.SERVICE, "train") in world.objects
    assert world.phase == "Running"


def test_a_running_job_survives_that_its_service_may_not_come_back() -> None:
    world = World.running(make.job())
    world.advance(minutes=1)
    world.refuse = lambda create: (403, "exceeded quota: services") if create.kind is Kind.SERVICE else None
    world.remove(Kind.SERVICE, "train")
    assert world.condition("Created") == "True/QuotaExceeded"
    tries = world.tries
    world.advance(hours=1)
    assert world.tries - tries < 90, "about once a minute"
    assert world.condition("Created") == "True/QuotaExceeded"
    assert world.phase == "Running"
    world.refuse = lambda _: None
    world.advance(minutes=2)
    assert (Kind.SERVICE, "train") in world.objects
    assert world.condition("Created") == "True/AllCreated"


def test_a_job_made_again_under_the_same_name_waits_for_the_old_pods() -> None:
    first = World.running(make.job())
    again = make.job()
    again["metadata"]["uid"] = "another-uid"
    world = World(again)
    world.objects = first.objects
    world.settle()
    assert world.creates == []
    assert world.deletes == [], "the garbage collector's business"
    assert world.condition("Created") == "False/WaitingForOldPods"
    world.remove(Kind.POD, "train-worker-0")
    world.remove(Kind.POD, "train-worker-1")
    assert world.creates == [], "the old service is still there"
    world.remove(Kind.SERVICE, "train")
    assert len(world.creates) == 3
    assert world.condition("Accepted") == "True/Valid"


def test_a_vanished_pod_is_looked_for_before_the_gang_restarts_once() -> None:
    world = World.running(make.job(worker=3))
    world.advance(minutes=1)
    world.remove(Kind.POD, "train-worker-1")
    assert world.lookups == 1
    assert world.status["attempt"] == 2
    assert world.status["disruptions"] == 1
    assert world.status.get("restarts", 0) == 0
    world.advance(minutes=1)
    assert world.attempts() == {"2"}
    assert len(world.pods) == 3


def test_a_pod_that_only_the_store_has_lost_restarts_nothing() -> None:
    world = World.running(make.job())
    world.advance(minutes=1)
    snapshot = world.snapshot()
    behind = Snapshot(snapshot.job, snapshot.pods[:1], snapshot.service)
    assert reconcile(behind, world.now, make.CONFIG) == Outcome(lookups=("train-worker-1",))
    assert reconcile(snapshot, world.now, make.CONFIG).intent is None


def test_a_new_operator_with_other_defaults_changes_nothing_of_a_running_attempt() -> None:
    evaluated = make.job(worker=2, evaluator=1)
    world = World.running(evaluated)
    world.advance(minutes=1)
    writes = len(world.writes)
    world.stop()
    newer = make.CONFIG.__class__(operator_image="operator:2", trainer_image="trainer:2", operator_version="2.0.0")
    world.start(newer)
    world.advance(hours=1)
    assert len(world.writes) == writes
    world.remove(Kind.POD, "train-evaluator-0")
    containers = world.pod("train-evaluator-0")["spec"]["containers"]
    assert containers[0]["image"] == "trainer:1"

    world.exits("train-worker-0", 137)
    world.advance(minutes=1)
    assert world.pod("train-worker-0")["spec"]["containers"][0]["image"] == "trainer:2", "the next attempt takes them"


def test_a_view_older_than_the_pods_deletes_and_creates_nothing() -> None:
    world = World.running(make.job())
    world.advance(minutes=1)
    assert world.job is not None
    old = {**world.job, "status": dict(world.status)}
    world.exits("train-worker-0", 137)
    world.advance(minutes=1)
    assert world.attempts() == {"2"}
    snapshot = world.snapshot()
    behind = Snapshot(old, snapshot.pods, snapshot.service, absent=frozenset(world.pods))
    outcome = reconcile(behind, world.now, make.CONFIG)
    assert outcome.deletes == ()
    assert outcome.creates == ()


@pytest.mark.parametrize(
    "status",
    [
        {},
        {"phase": "Running"},
        {"attempt": 2},
        {"conditions": []},
        {"attempt": 1, "conditions": [], "phase": "Nonsense"},
        {"replicaStatuses": {"worker": {}}, "restarts": 3},
    ],
    ids=str,
)
def test_a_status_that_somebody_wrote_by_hand_is_survived(status: dict[str, object]) -> None:
    world = World.running({**make.job(), "status": status})
    assert world.phase == "Running"
