"""Making an attempt complete: nothing is created beside what is still going, and the first to be refused goes first."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.unit.core import make
from tests.unit.core.simulator import World

from tfgpujob.core.observed.snapshot import Config, Kind, Outcome, Refusal, Snapshot
from tfgpujob.core.policies.start import not_before
from tfgpujob.core.reconcile import finalize_status, reconcile, report_refusals
from tfgpujob.core.status.builder import StatusBuilder, timestamp
from tfgpujob.names import Condition

ISOLATING = replace(make.CONFIG, network_policy_namespaces=frozenset({"*"}), operator_namespace="ops")


def test_the_first_look_asks_for_the_service_and_every_pod_after_its_intent() -> None:
    outcome = reconcile(Snapshot(make.job(worker=2, evaluator=1)), make.START, make.CONFIG)
    assert outcome.intent is not None
    assert outcome.intent["attempt"] == 1
    assert [create.name for create in outcome.creates] == [
        "train",
        "train-worker-0",
        "train-worker-1",
        "train-evaluator-0",
    ]
    assert outcome.first == ""
    assert "Created" not in {c["type"] for c in outcome.intent["conditions"]}, "not yet true"
    assert outcome.status is not None
    assert {"Created": "True"}.items() <= {c["type"]: c["status"] for c in outcome.status["conditions"]}.items()


@pytest.mark.parametrize(("name", "created"), [("train-worker-1", 0), ("train-evaluator-0", 4)])
def test_beside_a_foreign_pod_nothing_is_created_unless_it_has_an_evaluators_name(name: str, created: int) -> None:
    snapshot = Snapshot(make.job(worker=2, evaluator=1), (make.pod(name, owner_uid=""),))
    assert len(reconcile(snapshot, make.START, make.CONFIG).creates) == created


def test_what_was_refused_goes_first_and_alone() -> None:
    world = World(make.job(worker=3))
    world.refuse = lambda create: (403, "exceeded quota: q") if create.name == "train-worker-2" else None
    world.settle()
    tries = world.tries
    while world.tries == tries:
        world.advance(seconds=1)
    assert world.tries == tries + 1
    assert world.pods == []
    assert world.status["retry"]["object"] == "train-worker-2"
    assert world.status["retry"]["refusals"] == 2


def test_a_partly_created_attempt_is_completed() -> None:
    """The operator died between two creates: the intent says whose the pods are."""
    world = World.begun(make.job(worker=3))
    world.stop()
    for name in ("train-worker-1", "train-worker-2"):
        world.remove(Kind.POD, name)
    assert world.job is not None
    world.job["status"] = world.writes[0]
    creates = len(world.creates)
    world.start()
    assert world.creates[creates:] == ["train-worker-1", "train-worker-2"]
    assert world.attempts() == {"1"}


def test_an_old_pod_that_the_store_does_not_know_is_waited_for_patiently() -> None:
    snapshot = Snapshot(make.job(worker=1))
    outcome = reconcile(snapshot, make.START, make.CONFIG)
    written = Snapshot({**make.job(worker=1), "status": outcome.intent})
    old = Refusal(Kind.POD, "train-worker-0", 409, "AlreadyExists", "", make.pod(owner_uid="an-earlier-job"))
    update = finalize_status(written, outcome, (old,), make.START, make.CONFIG)
    assert update.status is None
    assert update.requeue_at is not None
    assert (update.requeue_at - make.START).total_seconds() >= 1


def test_nothing_is_created_before_its_time() -> None:
    world = World(make.job(worker=2))
    world.refuse = lambda create: (403, "exceeded quota: q") if create.kind is Kind.POD else None
    world.settle()
    snapshot = world.snapshot()
    outcome = reconcile(snapshot, world.now, make.CONFIG)
    assert outcome.creates == ()
    assert outcome.requeue_at == not_before(StatusBuilder(snapshot.job, world.now))


def test_a_service_that_is_refused_is_a_refusal_like_any_other() -> None:
    world = World(make.job(worker=2))
    world.refuse = lambda create: (403, "exceeded quota: services") if create.kind is Kind.SERVICE else None
    world.settle()
    assert world.condition("Created") == "False/QuotaExceeded"
    assert world.pods == []
    world.refuse = lambda _: None
    world.advance(minutes=2)
    assert len(world.pods) == 2


@pytest.mark.parametrize("kind", [Kind.SERVICE, Kind.NETWORK_POLICY])
def test_what_a_finalizer_holds_while_its_job_runs_stops_nobody_and_comes_back(kind: Kind) -> None:
    world = World.running(make.job("ParameterServer", chief=1, worker=2, ps=1), ISOLATING)
    world.objects[kind, "train"]["metadata"]["deletionTimestamp"] = "2026-01-01T00:01:00Z"
    world.settle()
    assert (world.phase, world.condition("Created")) == ("Running", "True/AllCreated")
    world.exits("train-worker-0", 137)
    world.advance(seconds=15)
    assert world.pod("train-worker-0")["metadata"]["labels"]["tfgpu.dev/replica-restart"] == "1", "beside it"
    world.remove(kind, "train")
    assert "deletionTimestamp" not in world.objects[kind, "train"]["metadata"]
    assert world.condition("Created") == "True/AllCreated"


def test_an_attempt_waits_for_a_service_that_is_about_to_go() -> None:
    world = World.running(make.job(worker=2))
    world.objects[Kind.SERVICE, "train"]["metadata"]["deletionTimestamp"] = "2026-01-01T00:01:00Z"
    world.exits("train-worker-0", 137)
    world.advance(minutes=1)
    assert (world.pods, world.condition("Created")) == ([], "False/WaitingForOldPods")
    world.remove(Kind.SERVICE, "train")
    world.advance(seconds=1)
    assert (len(world.pods), world.attempts()) == (2, {"2"})


def test_a_late_start_is_written_before_its_pods_are_created() -> None:
    """Else an operator that dies in between would find pods whose start deadline is over."""
    world = World.running(make.job(worker=2))
    world.exits("train-worker-0", 137)
    world.stop()
    world.advance(hours=3)
    outcome = reconcile(world.snapshot(), world.now, make.CONFIG)
    assert outcome.creates
    assert outcome.intent is not None
    assert outcome.intent["attemptStartTime"] == timestamp(world.now)


def test_a_refusal_is_reported_while_others_have_no_answer_and_no_policy_depends_on_it() -> None:
    job = make.job(worker=2, evaluator=1)
    outcome = reconcile(Snapshot(job), make.START, make.CONFIG)
    job["status"] = outcome.intent
    refused = Refusal(Kind.POD, "train-worker-1", 422, "Invalid", "spec.x: Required value")
    said = report_refusals(job, outcome, (refused,), make.START)
    assert said.status is not None
    builder = StatusBuilder({**job, "status": said.status}, make.START)
    assert builder.reason(Condition.CREATED) == "TemplateRefused"
    assert builder.is_true(Condition.ACCEPTED), "it waits for no edit yet"
    assert [event.reason for event in said.events] == ["TemplateRefused"]
    assert builder.fields["lastFailure"]["cause"] == "Refused"
    again = report_refusals({**job, "status": said.status}, outcome, (refused,), make.START)
    assert (again.status, again.events) == (None, ())
    finalized = finalize_status(Snapshot({**job, "status": said.status}), outcome, (refused,), make.START, make.CONFIG)
    assert finalized.events == (), "said already"
    optional = report_refusals(job, outcome, (replace(refused, name="train-evaluator-0"),), make.START)
    assert optional.status is not None
    assert "lastFailure" not in optional.status


def test_a_created_attempt_stays_so_when_a_refusal_is_reported() -> None:
    world = World.running(make.job(worker=1))
    assert world.job is not None
    refused = Refusal(Kind.POD, "train-worker-0", 403, "Forbidden", "no")
    said = report_refusals(world.job, Outcome(), (refused,), world.now)
    assert said.status is not None
    created = next(c for c in said.status["conditions"] if c["type"] == Condition.CREATED)
    assert (created["status"], created["reason"]) == ("True", "Forbidden")
    assert created["message"].startswith("What runs goes on. spec.replicaSpecs.worker.template: Pod train-worker-0 ")


@pytest.mark.parametrize("refusal", [(422, "no"), (403, "no"), (403, "exceeded quota: q")], ids=str)
def test_an_evaluator_that_is_refused_keeps_nobody_from_starting_again(refusal: tuple[int, str]) -> None:
    world = World(make.job("ParameterServer", chief=1, worker=2, ps=1, evaluator=1))
    world.refuse = lambda create: refusal if create.name == "train-evaluator-0" else None
    world.settle()
    world.ready()
    said = world.condition("Accepted"), world.message("Created")
    world.exits("train-worker-0", 137)
    world.advance(seconds=15)
    assert "train-worker-0" in world.pods
    world.exits("train-chief-0", 137)
    world.advance(seconds=15)
    world.ready()
    assert len(world.pods) == 4
    assert world.phase == "Running"
    assert (world.condition("Accepted"), world.message("Created")) == said
    tries = world.tries
    world.advance(minutes=30)
    assert world.tries - tries < 60


@pytest.mark.parametrize("refusal", [(422, "no"), (403, "no")], ids=str)
def test_a_gang_whose_evaluator_was_refused_starts_again(refusal: tuple[int, str]) -> None:
    world = World(make.job(worker=2, evaluator=1))
    world.refuse = lambda create: refusal if create.name == "train-evaluator-0" else None
    world.settle()
    world.ready()
    world.exits("train-worker-1", 137)
    world.advance(seconds=15)
    world.ready()
    assert (world.phase, world.attempts(), len(world.pods)) == ("Running", {"2"}, 2)


def test_a_worker_that_is_refused_for_long_keeps_no_other_from_starting_again() -> None:
    world = World.running(make.job("ParameterServer", chief=1, worker=2, ps=1))
    world.refuse = lambda create: (403, "no") if create.name == "train-worker-1" else None
    world.exits("train-worker-1", 137)
    world.advance(hours=1)
    world.exits("train-worker-0", 137)
    world.advance(minutes=1)
    assert "train-worker-0" in world.pods
    assert "train-worker-1 was refused" in world.message("Created")
    world.refuse = lambda _: None
    world.advance(minutes=6)
    assert "train-worker-1" in world.pods


def test_a_worker_whose_template_is_refused_waits_alone() -> None:
    world = World.running(make.job("ParameterServer", chief=1, worker=3, ps=1))
    refused = {"train-worker-1", "train-worker-2"}
    world.refuse = lambda create: (422, "no") if create.name in refused else None
    world.exits("train-worker-1", 137)
    world.advance(seconds=15)
    world.exits("train-worker-2", 137)
    world.advance(seconds=5)
    world.exits("train-worker-0", 137)
    world.advance(seconds=15)
    assert set(world.pods) == {"train-chief-0", "train-ps-0", "train-worker-0"}
    assert world.condition("Accepted") == "False/TemplateRefused"
    world.ready("train-worker-0")
    tries = world.tries
    world.advance(hours=5)
    assert (world.tries, world.phase) == (tries, "Running"), "only an edit helps"
    refused.clear()
    world.exits("train-chief-0", 137)
    world.advance(seconds=15)
    world.ready()
    world.advance(seconds=15)
    assert len(world.pods) == 5
    assert (world.condition("Accepted"), world.condition("Running")) == ("True/Valid", "True/AllReady")


def test_who_waits_for_room_does_not_wait_for_an_edit_of_another() -> None:
    world = World.running(make.job("ParameterServer", chief=1, worker=3, ps=1))
    answers = {"train-worker-1": (422, "no"), "train-worker-2": (403, "exceeded quota: q")}
    world.refuse = lambda create: answers.get(create.name)
    world.exits("train-worker-1", 137)
    world.exits("train-worker-2", 137)
    world.advance(hours=1)
    tries = world.tries
    world.advance(hours=1)
    assert 60 <= world.tries - tries < 250
    assert world.condition("Accepted") == "False/TemplateRefused"
    del answers["train-worker-2"]
    world.advance(seconds=75)
    assert "train-worker-2" in world.pods
    tries = world.tries
    world.advance(hours=1)
    assert world.tries - tries <= 1, "what is left waits for an edit"


@pytest.mark.parametrize("labelled", [True, False])
def test_an_evaluator_whose_name_is_taken_keeps_nobody_from_starting(labelled: bool) -> None:
    world = World(make.job(worker=2, evaluator=1))
    taken = {"name": "train-evaluator-0", "labels": {"tfgpu.dev/job-name": "train"} if labelled else {}}
    world.put(Kind.POD, {"metadata": taken})
    world.ready("train-worker-0", "train-worker-1")
    assert world.phase == "Running"
    assert world.condition("Accepted") == "False/NameTaken"
    assert "the pod train-evaluator-0 belongs to somebody else" in world.message("Accepted")
    tries, writes = world.tries, len(world.writes)
    world.advance(hours=1)
    assert 60 < world.tries - tries < 200
    assert len(world.writes) - writes < 200
    world.exits("train-worker-1", 137)
    world.advance(seconds=15)
    world.ready("train-worker-0", "train-worker-1")
    assert (world.phase, world.status["attempt"]) == ("Running", 2)
    world.remove(Kind.POD, "train-evaluator-0")
    world.advance(seconds=60)
    assert world.condition("Accepted") == "True/Valid"
    assert len(world.pods) == 3


def test_a_start_never_waits_for_the_evaluator_that_was_refused_with_a_worker() -> None:
    world = World(make.job(worker=2, evaluator=1))
    answers = {"train-evaluator-0": (422, "no"), "train-worker-1": (403, "exceeded quota: q")}
    world.refuse = lambda create: answers.get(create.name)
    world.settle()
    assert world.status["retry"]["object"] == "train-worker-1"
    assert world.pods == []
    del answers["train-worker-1"]
    world.advance(minutes=2)
    world.ready()
    assert (world.phase, world.pods) == ("Running", ["train-worker-0", "train-worker-1"])
    assert "disruptions" not in world.status


def test_each_pod_of_a_trainer_has_a_token_of_its_own() -> None:
    def tokens(config: Config, **parts: Any) -> list[str]:
        creates = reconcile(Snapshot(make.job(**parts)), make.START, config).creates
        envs = [c.body["spec"]["containers"][0]["env"] for c in creates if c.kind is Kind.POD]
        return [v["value"] for env in envs for v in env if v["name"] == "TFGPU_PROGRESS_TOKEN"]

    mine, other = (replace(make.CONFIG, progress_key=key) for key in (b"mine", b"other"))
    found = tokens(mine, worker=2)
    assert len({*found}) == 2
    assert all(len(token) == 32 and int(token, 16) for token in found)
    assert found == tokens(mine, worker=2)
    assert not {*found} & {*tokens(other, worker=2)}
    assert tokens(make.CONFIG, worker=2) == []
    assert tokens(mine, worker=2, trainer=None, image="mine:1") == [], "it is not asked"
    assert len({*tokens(mine, worker=2, trainer=None, image="mine:1", run={"stallSeconds": 60})}) == 2
    assert "mine" not in repr(mine)


def test_the_network_policy_comes_before_what_it_isolates() -> None:
    outcome = reconcile(Snapshot(make.job(worker=1)), make.START, ISOLATING)
    policy, first, rest = outcome.stages
    assert [create.kind for create in policy] == [Kind.NETWORK_POLICY]
    assert first == ()
    assert [create.kind for create in rest] == [Kind.SERVICE, Kind.POD]
    assert outcome.events[0].message == "Attempt 1: created 1 pod, the NetworkPolicy and the service."


def test_without_its_network_policy_no_pod_of_a_job_is_created() -> None:
    world = World(make.job(worker=2), ISOLATING)
    world.refuse = lambda create: (403, "no right") if create.kind is Kind.NETWORK_POLICY else None
    world.settle()
    assert world.condition("Created") == "False/Forbidden"
    assert world.message("Created").startswith("NetworkPolicy train was refused: no right.")
    assert world.objects == {}
    world.refuse = lambda _: None
    world.advance(minutes=6)
    assert world.creates == ["train", "train", "train-worker-0", "train-worker-1"]


def test_a_network_policy_that_is_deleted_comes_back() -> None:
    world = World.running(make.job(worker=1), ISOLATING)
    world.remove(Kind.NETWORK_POLICY, "train")
    assert (Kind.NETWORK_POLICY, "train") in world.objects
    assert world.events[-1].message == "Attempt 1: created the NetworkPolicy."


def test_jobs_that_run_get_one_when_it_is_turned_on_and_keep_their_pods() -> None:
    world = World.running(make.job(worker=2))
    world.stop()
    world.start(ISOLATING)
    assert world.creates[3:] == ["train"]
    assert (Kind.NETWORK_POLICY, "train") in world.objects
    assert world.deletes == []


def test_somebody_elses_network_policy_of_that_name_is_told() -> None:
    world = World(make.job(worker=1), ISOLATING)
    world.put(Kind.NETWORK_POLICY, {"metadata": {"name": "train"}})
    assert world.condition("Accepted") == "False/NameTaken"
    assert "the networkpolicy train belongs to somebody else" in world.message("Accepted")
    world.remove(Kind.NETWORK_POLICY, "train")
    world.advance(minutes=1)
    assert world.pods == ["train-worker-0"]
