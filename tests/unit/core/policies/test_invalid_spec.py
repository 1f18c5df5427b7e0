"""Specs that are not valid: refused, edited in while the job runs, or no longer to a later release's taste."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.core import make
from tests.unit.core.simulator import World

from tfgpujob.api import parse
from tfgpujob.api.invalid import Invalid
from tfgpujob.api.rules.rule import JobRule
from tfgpujob.core.observed.snapshot import Config, Kind


def test_a_spec_that_is_not_valid_is_refused_with_field_problem_and_fix_and_starts_once_mended() -> None:
    world = World.begun(make.job("OneDevice", worker=2))
    assert world.phase == "Pending"
    assert world.condition("Accepted") == "False/InvalidSpec"
    assert "spec.replicaSpecs.worker.replicas" in world.message("Accepted")
    assert [event.reason for event in world.events] == ["InvalidSpec"]
    assert len(world.writes) == 1
    world.advance(hours=1)
    assert len(world.writes) == 1
    world.edit(lambda spec: spec["replicaSpecs"]["worker"].update(replicas=1))
    assert world.pods == ["train-worker-0"]
    assert world.condition("Accepted") == "True/Valid"


@pytest.mark.parametrize(
    ("spec", "allowed", "field"),
    [
        ({"hostNetwork": True}, Config("o", "t", "1", allow_host_namespaces=frozenset({"ns"})), "hostNetwork"),
        ({"hostNetwork": True}, Config("o", "t", "1", allow_host_namespaces=frozenset({"*"})), "hostNetwork"),
        (
            {"serviceAccountName": "admin"},
            Config("o", "t", "1", allowed_service_accounts=frozenset({"ns/admin"})),
            "serviceAccountName",
        ),
        (
            {"serviceAccountName": "admin"},
            Config("o", "t", "1", allowed_service_accounts=frozenset({"*/admin"})),
            "serviceAccountName",
        ),
    ],
)
def test_what_the_administrator_allows_in_this_namespace(spec: dict[str, object], allowed: Config, field: str) -> None:
    elsewhere = Config("o", "t", "1", frozenset({"other"}), frozenset({"other/admin"}))
    job = make.job("OneDevice", worker={"template": {"spec": spec}})
    world = World.begun(job, elsewhere)
    assert world.condition("Accepted") == "False/InvalidSpec"
    assert field in world.message("Accepted")
    world = World.begun(job, allowed)
    assert world.pods == ["train-worker-0"]


def test_an_invalid_edit_stops_nothing() -> None:
    world = World.running(make.job())
    world.edit(lambda spec: spec.update(strategy="Nonsense"))
    assert world.condition("Accepted") == "False/InvalidSpec"
    assert world.phase == "Running"
    assert world.deletes == []
    world.edit(lambda spec: spec.update(strategy="MultiWorkerMirrored"))
    assert world.condition("Accepted") == "True/Valid"


def test_under_an_invalid_edit_a_job_can_be_suspended_and_goes_on_once_it_is_mended() -> None:
    world = World.running(make.job())
    world.edit(lambda spec: spec.update(strategy="Nonsense"))
    world.suspend()
    assert (world.phase, world.pods) == ("Suspended", [])
    assert world.condition("Accepted") == "False/InvalidSpec"
    world.suspend(False)
    world.advance(hours=1)
    assert world.pods == [], "nobody knows what to start"
    world.edit(lambda spec: spec.update(strategy="MultiWorkerMirrored"))
    assert world.attempts() == {"2"}
    assert world.condition("Accepted") == "True/Valid"


@pytest.mark.parametrize("wrong", [{"strategy": "Nonsense"}, {"replicaSpecs": 3}, {"image": ""}], ids=str)
def test_the_deadlines_of_a_job_run_on_under_an_invalid_edit(wrong: dict[str, object]) -> None:
    world = World.running(make.job(run={"activeDeadlineSeconds": 600, "ttlSecondsAfterFinished": 300}))
    world.edit(lambda spec: spec.update(wrong))
    world.advance(minutes=9)
    assert world.phase == "Running"
    world.advance(minutes=2)
    assert world.condition("Failed") == "True/DeadlineExceeded"
    assert world.pods == []
    world.advance(minutes=6)
    assert world.job is None


def test_what_has_succeeded_under_an_invalid_edit_has_not_run_too_long() -> None:
    world = World.running(make.job(run={"activeDeadlineSeconds": 600}))
    world.edit(lambda spec: spec.update(strategy="Nonsense"))
    world.exits("train-worker-0", 0)
    world.exits("train-worker-1", 0)
    world.advance(hours=1)
    assert world.phase == "Running"
    world.edit(lambda spec: spec.update(strategy="MultiWorkerMirrored"))
    assert world.phase == "Succeeded"


def test_what_cannot_be_read_of_the_run_policy_is_as_if_it_were_not_there() -> None:
    world = World.running(make.job(run={"activeDeadlineSeconds": 600}))
    world.edit(lambda spec: spec["runPolicy"].update(backoffLimit=-1, restartScop="Gang", activeDeadlineSeconds=60))
    world.advance(minutes=2)
    assert world.condition("Failed") == "True/DeadlineExceeded"


def test_what_pods_achieve_under_an_invalid_edit_is_not_lost() -> None:
    world = World.running(make.job(worker=1))
    world.edit(lambda spec: spec.update(strategy="Guess"))
    world.exits("train-worker-0", 0)
    world.advance(seconds=30)
    world.remove(Kind.POD, "train-worker-0")
    world.edit(lambda spec: spec.update(strategy="MultiWorkerMirrored"))
    assert world.phase == "Succeeded"


def test_a_rule_of_a_later_release_refuses_no_job_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World.running(make.job(worker=2))
    rule = JobRule("new.rule", lambda _: iter([Invalid("spec.image", "is out of fashion", "use another")]))
    monkeypatch.setattr(parse, "JOB_RULES", (rule,))
    world.stop()
    world.start(replace(world.config, operator_version="2.0.0"))
    world.settle()
    assert world.condition("Accepted") == "True/Valid"
    world.exits("train-worker-0", 137)
    world.advance(minutes=1)
    assert world.status["attempt"] == 2
    world.edit(lambda spec: spec.update(runPolicy={"ttlSecondsAfterFinished": 60}))
    world.settle()
    assert world.condition("Accepted") == "False/InvalidSpec", "what is edited is validated as a new job would be"


@pytest.mark.parametrize("run", [{}, {"schedulingPolicy": {"scheduleTimeoutSeconds": 60}}], ids=str)
def test_half_a_gang_is_released_in_time_though_nobody_knows_what_to_start_next(run: dict[str, object]) -> None:
    world = World.begun(make.job(worker=2, run={"startDeadlineSeconds": 90, **run}))
    world.ready("train-worker-0")
    world.edit(lambda spec: spec.update(strategy="Nonsense"))
    world.advance(seconds=91)
    assert (world.pods, world.phase) == ([], "Pending")
    assert world.condition("Accepted") == "False/InvalidSpec"
    assert world.condition("Created") in {"False/StartDeadlineExceeded", "False/ScheduleTimeoutExceeded"}
    writes = len(world.writes)
    world.advance(hours=3)
    assert (world.pods, len(world.writes)) == ([], writes)
    world.edit(lambda spec: spec.update(strategy="MultiWorkerMirrored"))
    world.ready()
    assert (world.phase, world.condition("Accepted")) == ("Running", "True/Valid")


def test_a_start_that_is_complete_under_an_invalid_edit_is_in_time() -> None:
    world = World.begun(make.job(worker=2, run={"startDeadlineSeconds": 90, "startPolicy": "Fail"}))
    world.edit(lambda spec: spec.update(strategy="Nonsense"))
    world.ready()
    assert (world.phase, world.condition("Running")) == ("Running", "True/AllReady")
    world.advance(hours=1)
    assert (world.phase, world.attempts()) == ("Running", {"1"})


def test_a_start_that_is_too_late_under_an_invalid_edit_fails_where_it_is_to() -> None:
    world = World.begun(make.job(worker=2, run={"startDeadlineSeconds": 90, "startPolicy": "Fail"}))
    world.edit(lambda spec: spec.update(strategy="Nonsense"))
    world.advance(seconds=91)
    assert (world.condition("Failed"), world.pods) == ("True/StartDeadlineExceeded", [])


def test_pods_of_a_start_that_is_over_go_though_the_spec_is_not_valid_any_more() -> None:
    """The operator wrote that the gang starts again, and died; meanwhile the spec was edited."""
    world = World.running(make.job(worker=2))
    world.stop()
    world.exits("train-worker-1", 137)
    pods = dict(world.objects)
    world.start()
    assert world.job is not None
    world.objects, world.job["status"] = pods, world.writes[-1]
    world.edit(lambda spec: spec.update(strategy="Nonsense"))
    assert world.pods == []


def test_managed_by_that_is_changed_while_the_job_has_pods_is_refused_and_its_pods_stay_ours() -> None:
    """On servers without CEL; otherwise they would have no controller, and would hold their GPUs forever."""
    world = World.running(make.job())
    world.edit(lambda spec: spec.setdefault("runPolicy", {}).update(managedBy="example.com/other"))
    assert world.condition("Accepted") == "False/InvalidSpec"
    assert "spec.runPolicy.managedBy: can't be changed" in world.message("Accepted")
    assert world.phase == "Running"
    assert world.deletes == []
    world.edit(lambda spec: spec["runPolicy"].update(suspend=True))
    assert world.pods == []
    world.edit(lambda spec: spec.update(runPolicy={}))
    assert world.condition("Accepted") == "True/Valid"
    assert world.pods == ["train-worker-0", "train-worker-1"]
