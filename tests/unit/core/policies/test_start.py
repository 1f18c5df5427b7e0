"""Starting a gang: as a whole or not at all; and what a refusal means."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from tests.unit.core import make
from tests.unit.core.simulator import World

from tfgpujob.core.observed.snapshot import Creation, Dependent, Kind, Pod, Refusal
from tfgpujob.core.policies.refusals import problem
from tfgpujob.core.status.builder import moment

QUOTA = 'pods "x" is forbidden: exceeded quota: gpus, requested: 1, used: 2, limited: 2'


def refusal(
    code: int, message: str = "no", name: str = "train-worker-0", holder: Pod | Dependent | None = None
) -> Refusal:
    return Refusal(Kind.POD, name, code, "", message, holder)


POLICY = "pods \"train-worker-0\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no"
WEBHOOK = 'admission webhook "policy.example.com" denied the request: no'
FOREIGN = refusal(409, holder=make.pod(owner_uid=""))
OLD = refusal(409, holder=make.pod(attempt=1))
FOREIGN_SERVICE = Refusal(Kind.SERVICE, "train", 409, "", "", Dependent("train", "u", "1", "", "", False))


@pytest.mark.parametrize(
    ("refusals", "condition", "reason", "cap"),
    [
        ([refusal(422)], "Accepted", "TemplateRefused", None),
        ([refusal(400)], "Accepted", "TemplateRefused", None),
        ([refusal(422, POLICY)], "Created", "Forbidden", 300),
        ([refusal(400, WEBHOOK)], "Created", "Forbidden", 300),
        ([refusal(403, QUOTA)], "Created", "QuotaExceeded", 60),
        ([refusal(403)], "Created", "Forbidden", 300),
        ([refusal(429)], "Created", "Forbidden", 300),
        ([refusal(500)], "Created", "Forbidden", 300),
        ([refusal(404, "namespace not found")], "Created", "Forbidden", 300),
        ([FOREIGN], "Accepted", "NameTaken", 30),
        ([FOREIGN_SERVICE], "Accepted", "NameTaken", 30),
        ([refusal(403, QUOTA), refusal(422)], "Accepted", "TemplateRefused", None),
        ([refusal(403, QUOTA), FOREIGN], "Accepted", "NameTaken", 30),
        ([OLD, refusal(403, QUOTA)], "Created", "QuotaExceeded", 60),
    ],
)
def test_what_a_refusal_means(refusals: list[Refusal], condition: str, reason: str, cap: float | None) -> None:
    found = problem(tuple(refusals), make.JOB_UID, attempt=2)
    assert found is not None
    assert (found.condition, found.reason, found.retry_cap) == (condition, reason, cap)
    assert found.message


@pytest.mark.parametrize("refusals", [[OLD], [refusal(409)], []], ids=["old", "gone meanwhile", "none"])
def test_refusals_that_only_a_retry_helps(refusals: list[Refusal]) -> None:
    assert problem(tuple(refusals), make.JOB_UID, attempt=2) is None


@pytest.mark.parametrize(
    ("refusals", "words"),
    [
        ([refusal(422, "spec.x: Required value.")], ["train-worker-0", "spec.x: Required value.", "spec.replicaSpecs"]),
        ([refusal(403, QUOTA)], ["train-worker-0", "exceeded quota: gpus", "tried again"]),
        ([refusal(403, "no account a")], ["spec.replicaSpecs.worker.template: Pod train-worker-0 was refused: no acc"]),
        ([FOREIGN], ["metadata.name", "train-worker-0", "Delete or rename"]),
    ],
)
def test_the_message_names_object_problem_and_fix(refusals: list[Refusal], words: list[str]) -> None:
    found = problem(tuple(refusals), make.JOB_UID, attempt=2)
    assert found is not None
    for word in words:
        assert word in found.message


def test_a_right_that_the_operator_lacks_is_nothing_of_the_template() -> None:
    found = problem((refusal(403, 'User "u" cannot create resource "pods"'),), make.JOB_UID, attempt=2)
    assert found is not None
    assert found.message.startswith("Pod train-worker-0 was refused")


def job(**run: Any) -> dict[str, Any]:
    return make.job(worker=2, run=run)


def test_a_start_that_takes_too_long_releases_all_and_is_tried_again() -> None:
    world = World.begun(job(startDeadlineSeconds=300))
    world.ready("train-worker-0")
    world.waits("train-worker-1", "Unschedulable", "0/5 nodes: insufficient nvidia.com/gpu")
    assert world.condition("Running") == "False/ReplicaNotReady"
    assert "train-worker-1: Unschedulable: 0/5 nodes" in world.message("Running")
    world.advance(seconds=299)
    assert world.attempts() == {"1"}
    world.advance(seconds=2)
    assert world.pods == []
    assert world.condition("Created") == "False/StartDeadlineExceeded"
    assert "spec.runPolicy.startDeadlineSeconds (300 s)" in world.message("Created")
    assert "Unschedulable" in world.message("Created")
    assert world.phase == "Pending"
    world.advance(seconds=10)
    assert world.attempts() == {"2"}
    world.ready()
    assert world.phase == "Running"
    world.advance(hours=1)
    assert world.attempts() == {"2"}, "the clock stops when all are ready"


GANG_WAITS = (
    ("Unschedulable", "waiting for the other pods of the group"),
    ("Unschedulable", "0/4 nodes are available: pre-filter pod train-worker-0 cannot find enough sibling pods"),
    ("Unschedulable", "0/1 nodes are available: 1 optimistic rejection in PostFilter."),
    ("Unschedulable", "0/1 nodes are available: 1 rejection in Unreserve."),
    ("Unschedulable", "0/1 nodes are available: 1 rejected due to timeout after waiting 10s at plugin Coscheduling."),
    ("Unschedulable", "0/4 nodes are available: podGroup default/train failed recently."),
    ("Schedulable", "Pod default/train-worker-0 can possibly be assigned to n1, once minAvailable is satisfied"),
    ("Unschedulable", "all nodes are unavailable"),
)
"""What kube-scheduler, scheduler-plugins and Volcano say of a pod that would fit."""
NO_ROOM = (
    "0/4 nodes are available: 4 Insufficient nvidia.com/gpu.",
    "0/4 nodes are unavailable: 4 Insufficient nvidia.com/gpu.",
)


@pytest.mark.parametrize("said", NO_ROOM)
@pytest.mark.parametrize("others", GANG_WAITS, ids=lambda waits: waits[1][:40])
def test_of_a_gang_that_does_not_fit_the_pod_without_room_is_told(others: tuple[str, str], said: str) -> None:
    world = World.begun(job())
    world.waits("train-worker-0", *others)
    world.waits("train-worker-1", "Unschedulable", said)
    world.advance(seconds=10)
    assert f"train-worker-1: Unschedulable: {said} Ask for less" in world.message("Running")


def test_of_a_gang_of_which_volcano_names_nothing_the_pod_that_does_not_fit_is_told() -> None:
    said = "pod group is not ready, 2 Pending, 2 minAvailable; Pending: 1 Unschedulable, 1 Schedulable"
    world = World.begun(job())
    world.waits("train-worker-0", *GANG_WAITS[-2])
    world.waits("train-worker-1", "Unschedulable", said)
    world.advance(seconds=10)
    assert f"train-worker-1: Unschedulable: {said}. Ask for less" in world.message("Running")


def test_what_a_gang_lacks_is_told_when_its_scheduler_says_of_each_pod_that_it_waits_for_the_others() -> None:
    """It looks at the pod that has no room again when the others have let go of theirs."""
    world = World.begun(job(schedulingPolicy={"scheduleTimeoutSeconds": 60}))
    world.waits("train-worker-0", "Unschedulable", NO_ROOM[0])
    for name in ("train-worker-0", "train-worker-1"):
        world.waits(name, "Unschedulable", "0/1 nodes are available: 1 rejection in Unreserve.")
    world.advance(seconds=20)
    assert f"train-worker-0: Unschedulable: {NO_ROOM[0]} Ask for less" in world.message("Running")
    world.waits("train-worker-1", "Unschedulable", "0/4 nodes are available: 4 Insufficient memory.")
    world.advance(seconds=20)
    assert "train-worker-1: Unschedulable: 0/4 nodes are available: 4 Insufficient memory." in world.message("Running")
    world.advance(seconds=21)
    assert f"train-worker-0: {NO_ROOM[0][:-1]}; train-worker-1: 0/4 nodes" in world.message("Created")


def test_the_start_deadline_is_reset_after_waiting_for_stale_pods() -> None:
    world = World(job(startDeadlineSeconds=60))
    world.refuse = lambda create: (403, QUOTA) if create.kind is Kind.POD else None
    world.settle()
    world.advance(hours=1)
    assert world.condition("Created") == "False/QuotaExceeded", "not a late start: nothing had begun"
    world.refuse = lambda _: None
    while not world.pods:
        world.advance(seconds=1)
    assert len(world.pods) == 2
    attempt = world.attempts()
    world.advance(seconds=30)
    world.ready()
    assert world.phase == "Running"
    assert world.attempts() == attempt


def test_a_template_that_waits_for_an_edit_has_no_deadline() -> None:
    world = World(job(startDeadlineSeconds=60))
    world.refuse = lambda create: (422, "no") if create.kind is Kind.POD else None
    world.settle()
    world.advance(hours=2)
    assert world.condition("Accepted") == "False/TemplateRefused"
    assert world.condition("Created") == "False/TemplateRefused"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [((403, QUOTA), "QuotaExceeded"), ((422, "no"), "TemplateRefused"), ((403, "a webhook said no"), "Forbidden")],
)
def test_start_policy_fail_ends_the_job_at_the_first_refusal(answer: tuple[int, str], reason: str) -> None:
    def refuse(create: Creation) -> tuple[int, str] | None:
        return answer if create.name == "train-worker-1" else None

    world = World(job(startPolicy="Fail"))
    world.refuse = refuse
    world.settle()
    assert world.phase == "Failed"
    assert world.condition("Failed") == f"True/{reason}"
    assert world.pods == [], "what had been created is cleaned up"
    assert [event.reason for event in world.events] == ["Failed"]


def test_start_policy_fail_ends_the_job_at_the_deadline() -> None:
    world = World.begun(job(startPolicy="Fail", startDeadlineSeconds=60))
    world.advance(seconds=61)
    assert world.condition("Failed") == "True/StartDeadlineExceeded"
    assert world.pods == []


def test_a_peer_gate_that_gave_up_while_the_operator_was_away_is_no_failure_of_the_job() -> None:
    """It ends at the start deadline, and what was too late is the start: no restart is counted."""
    world = World.begun(job(startPolicy="Fail", startDeadlineSeconds=60))
    world.stop()
    world.advance(seconds=61)
    world.waits_in_vain("train-worker-0")
    world.start()
    assert world.condition("Failed") == "True/StartDeadlineExceeded"
    assert (world.status["attempt"], world.status.get("restarts", 0)) == (1, 0)


def test_a_peer_gate_that_gives_up_before_the_operators_clock_ends_the_start_too() -> None:
    world = World.begun(job(startDeadlineSeconds=60))
    world.advance(seconds=59)
    world.waits_in_vain("train-worker-0")
    assert (world.condition("Created"), world.pods) == ("False/StartDeadlineExceeded", [])
    assert (world.status["attempt"], world.status.get("restarts", 0)) == (2, 0)


@pytest.mark.parametrize("by_its_gate", [True, False])
def test_a_start_of_which_only_a_part_was_created_is_too_late_as_soon_as_a_whole_one(by_its_gate: bool) -> None:
    """The operator was killed between two creates, and comes back when the second one is too late."""
    world = World.begun(job(startDeadlineSeconds=60))
    world.stop()
    world.remove(Kind.POD, "train-worker-1")
    assert world.job is not None
    world.job["status"] = world.writes[0]
    world.advance(seconds=30 if by_its_gate else 90)
    if by_its_gate:
        world.waits_in_vain("train-worker-0")
    creates = len(world.creates)
    world.start()
    assert (world.condition("Created"), world.pods) == ("False/StartDeadlineExceeded", [])
    assert (world.status["attempt"], world.creates[creates:]) == (2, [])


@pytest.mark.parametrize("seconds", [30, 90])
def test_another_init_container_that_fails_is_a_failure_whenever_it_does(seconds: int) -> None:
    world = World.begun(job(startPolicy="Fail", startDeadlineSeconds=60))
    world.stop()
    world.advance(seconds=seconds)
    world.pod("train-worker-0")["status"] = {"phase": "Failed"}
    world.start()
    assert world.status["restarts"] == 1


def test_start_policy_fail_still_waits_for_a_name() -> None:
    world = World(job(startPolicy="Fail"))
    world.put(Kind.SERVICE, {"metadata": {"name": "train"}})
    world.advance(hours=1)
    assert world.condition("Accepted") == "False/NameTaken"
    assert world.condition("Failed") == ""
    world.remove(Kind.SERVICE, "train")
    world.advance(minutes=1)
    assert len(world.pods) == 2


def test_an_evaluator_that_does_not_fit_holds_nobody_up() -> None:
    world = World(make.job(worker=2, evaluator=1))
    world.refuse = lambda create: (403, QUOTA) if create.name == "train-evaluator-0" else None
    world.settle()
    assert world.condition("Created") == "True/QuotaExceeded"
    assert "train-evaluator-0" in world.message("Created")
    assert [event.reason for event in world.events] == ["QuotaExceeded"]
    world.ready()
    assert world.phase == "Running"
    tries, writes = world.tries, len(world.writes)
    world.advance(hours=1)
    assert 30 < world.tries - tries < 120, "about once a minute"
    assert len(world.writes) - writes < 120
    assert world.attempts() == {"1"}
    world.refuse = lambda _: None
    world.advance(seconds=75)
    assert "train-evaluator-0" in world.pods
    world.advance(seconds=11)
    assert world.condition("Created") == "True/AllCreated"
    world.exits("train-worker-0", 0)
    world.exits("train-worker-1", 0)
    assert world.phase == "Succeeded"


def test_an_evaluator_that_is_never_allowed_waits_without_tries() -> None:
    world = World(make.job(worker=1, evaluator=1))
    world.refuse = lambda create: (422, "no") if create.name == "train-evaluator-0" else None
    world.settle()
    world.ready()
    tries = world.tries
    world.advance(hours=5)
    assert world.tries == tries
    assert world.condition("Accepted") == "False/TemplateRefused"
    assert world.phase == "Running"
    assert "suspend the job, correct the template, and resume it" in world.message("Accepted")
    world.suspend()
    world.refuse = lambda _: None
    world.edit(lambda spec: spec["replicaSpecs"]["evaluator"].update(gpus=0))
    world.suspend(False)
    assert (world.condition("Accepted"), len(world.pods)) == ("True/Valid", 2)


def test_a_start_that_is_tried_again_says_what_failed() -> None:
    world = World(make.job(worker=2))
    world.refuse = lambda create: (403, QUOTA) if create.name == "train-worker-1" else None
    world.settle()
    assert world.status["lastFailure"]["cause"] == "Quota"
    assert "role" not in world.status["lastFailure"]


@pytest.mark.parametrize("refusal", [(403, "exceeded quota: q"), (403, "no"), (422, "no")], ids=str)
def test_what_is_there_of_a_gang_that_cannot_be_started_goes_whatever_is_to_stay(refusal: tuple[int, str]) -> None:
    world = World(make.job(worker=2, run={"startPolicy": "Fail", "cleanPodPolicy": "None"}))
    world.refuse = lambda create: refusal if create.name == "train-worker-1" else None
    world.settle()
    assert (world.phase, world.pods) == ("Failed", [])


def test_what_is_there_of_a_gang_that_starts_too_late_goes_whatever_is_to_stay() -> None:
    world = World.begun(make.job(worker=2, run={"startPolicy": "Fail", "cleanPodPolicy": "None"}))
    world.ready("train-worker-0")
    world.advance(hours=1)
    assert (world.condition("Failed"), world.pods) == ("True/StartDeadlineExceeded", [])


def test_an_edit_of_what_does_not_come_up_is_taken_when_its_time_is_over() -> None:
    """Else half a gang would wait for ever for an edit to be taken back that was to help it."""
    world = World.begun(job(startDeadlineSeconds=60))
    world.ready("train-worker-0")
    world.waits("train-worker-1", "Unschedulable", "no room")
    world.edit(lambda spec: spec.update(image="smaller:2"))
    assert world.condition("Accepted") == "False/ImmutableFieldChanged"
    world.advance(seconds=61)
    assert world.pods == []
    world.advance(seconds=5)
    world.ready()
    assert world.pod("train-worker-1")["spec"]["containers"][0]["image"] == "smaller:2"
    assert (world.phase, world.condition("Accepted")) == ("Running", "True/Valid")


def test_starts_that_are_always_too_late_come_after_longer_and_longer_waits() -> None:
    """Two gangs each hold half of the capacity: one has to wait for longer than the other needs."""
    world = World.begun(job(startDeadlineSeconds=60))
    waits: list[float] = []
    while len(waits) < 6:
        world.advance(seconds=1)
        if not world.pods and world.status["attempt"] == len(waits) + 2:
            waits.append((moment(world.status["retry"]["notBefore"]) - world.now).total_seconds())
    assert all(later > 1.2 * sooner for sooner, later in itertools.pairwise(waits)), waits
    world.advance(minutes=5)
    world.ready()
    assert "retry" not in world.status, "it runs: the next failure starts over"


@pytest.mark.parametrize(
    ("spec", "status", "words"),
    [
        ({}, {}, "has no node, and no scheduler says why"),
        ({"nodeName": "n1"}, {"phase": "Pending"}, "a volume names a Secret, ConfigMap or claim that is not there"),
        (
            {"nodeName": "n1"},
            {"phase": "Pending", "initContainerStatuses": [{"name": "prepare", "state": {"running": {}}}]},
            "still runs its init container prepare",
        ),
        (
            {"nodeName": "n1"},
            {
                "phase": "Running",
                "containerStatuses": [
                    {"name": "tensorflow", "ready": False, "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}
                ],
            },
            "its readinessProbe does not pass",
        ),
        (
            {"nodeName": "n1"},
            {"phase": "Unknown", "reason": "NodeLost", "message": "Node n1 is unresponsive."},
            "is Unknown: NodeLost: Node n1 is unresponsive. Its events",
        ),
    ],
)
def test_f6_a_start_that_is_silent_says_what_is_known_after_20_seconds_and_once(
    spec: dict[str, Any], status: dict[str, Any], words: str
) -> None:
    world = World.begun(make.job(worker=2))
    world.ready("train-worker-0")
    world.pod("train-worker-1")["spec"] |= spec
    world.pod("train-worker-1")["status"] = status
    world.settle()
    world.advance(seconds=15)
    assert world.condition("Running") == "False/Starting"
    writes = len(world.writes)
    world.advance(seconds=10)
    assert world.condition("Running") == "False/ReplicaNotReady"
    message = world.message("Running")
    assert message.startswith("1 of 2 required replicas are ready; train-worker-1 ")
    assert words in message
    assert message.endswith("Its events say more: kubectl describe pod train-worker-1.")
    world.advance(minutes=10)
    assert len(world.writes) == writes + 1


def test_f6_a_missing_secret_is_what_the_kubelet_says_of_it() -> None:
    world = World.begun(make.job(worker=1))
    waits = {"waiting": {"reason": "CreateContainerConfigError", "message": 'secret "a" not found'}}
    world.pod("train-worker-0")["status"] = {
        "phase": "Pending",
        "containerStatuses": [{"name": "tensorflow", "ready": False, "state": waits}],
    }
    world.settle()
    assert 'train-worker-0: CreateContainerConfigError: secret "a" not found. Create in' in world.message("Running")


def test_f6_who_waits_for_its_peers_is_not_what_the_start_waits_for() -> None:
    world = World.begun(make.job(worker=2))
    gate = {"name": "tfgpu-peer-gate", "state": {"running": {}}}
    world.pod("train-worker-0")["spec"]["nodeName"] = "n1"
    world.pod("train-worker-0")["status"] = {"phase": "Pending", "initContainerStatuses": [gate]}
    world.advance(seconds=25)
    assert "train-worker-1 has no node" in world.message("Running")
