"""Whose end stopped the attempt, and what it says about restarting."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.unit.core import make
from tests.unit.core.simulator import World

from tfgpujob.api import JobStatus, RestartPolicy
from tfgpujob.core.observed.members import ReplicaId
from tfgpujob.core.observed.observed_pods import observe_pods
from tfgpujob.core.observed.snapshot import Pod, Snapshot
from tfgpujob.core.policies.restart.failure import Cause, Failure, failure_of, failures, root_cause
from tfgpujob.names import Role

EARLY, LATE = "2026-01-01T00:00:10Z", "2026-01-01T00:00:20Z"


def blamed(*pods: Pod, policy: str = "ExitCode", gone: tuple[ReplicaId, ...] = ()) -> Failure | None:
    observed = make.observed(make.job(worker=4, evaluator=1), *pods)
    found = failures(observed, {Role.WORKER: RestartPolicy(policy)}, frozenset(gone))
    return root_cause(found) if found else None


def worker(index: int, **fields: Any) -> Pod:
    return make.pod(f"train-worker-{index}", **fields)


@pytest.mark.parametrize(
    ("pod", "policy", "cause"),
    [
        *(({"exit": code}, "ExitCode", Cause.PERMANENT) for code in (1, 2, 70, 71, 127)),
        *(({"exit": code}, "ExitCode", Cause.RETRYABLE) for code in (128, 134, 137, 139, 143, 160, 161, 255)),
        ({"phase": "Failed"}, "ExitCode", Cause.RETRYABLE),
        ({"exit": 1, "reason": "OOMKilled"}, "ExitCode", Cause.RETRYABLE),
        *(
            ({"exit": code, "phase": "Failed", "status_reason": "DeadlineExceeded"}, "ExitCode", Cause.RETRYABLE)
            for code in (0, 1, 137)
        ),
        ({"exit": 0, "phase": "Failed", "status_reason": "Evicted"}, "ExitCode", Cause.DISRUPTION),
        ({"exit": -1}, "ExitCode", Cause.RETRYABLE),
        ({"exit": 137}, "Never", Cause.PERMANENT),
        ({"phase": "Failed"}, "Never", Cause.PERMANENT),
        ({"exit": 1}, "OnFailure", Cause.RETRYABLE),
        ({"exit": 1}, "Always", Cause.RETRYABLE),
        *(
            ({"phase": "Failed", "status_reason": reason}, "Never", Cause.DISRUPTION)
            for reason in ("Evicted", "Preempting", "NodeLost", "NodeAffinity", "Shutdown", "Terminated")
        ),
        ({"exit": 137, "disruption": "PreemptionByScheduler"}, "ExitCode", Cause.DISRUPTION),
        ({"exit": 1, "deleting": True}, "Never", Cause.DISRUPTION),
        ({"deleting": True}, "ExitCode", Cause.DISRUPTION),
        ({"phase": "Failed", "status_reason": "UnexpectedAdmissionError"}, "ExitCode", Cause.DISRUPTION),
        ({"phase": "Failed", "status_reason": "OutOfmemory"}, "Never", Cause.DISRUPTION),
        ({"phase": "Failed", "status_reason": "SysctlForbidden"}, "ExitCode", Cause.RETRYABLE),
    ],
)
def test_the_cause(pod: dict[str, Any], policy: str, cause: Cause) -> None:
    failure = blamed(worker(0, **pod), policy=policy)
    assert failure is not None
    assert failure.cause is cause


@pytest.mark.parametrize(
    "pods",
    [
        (worker(0), worker(1, ready=False)),
        (worker(0, exit=0), worker(1)),
        (worker(0, exit=0, deleting=True),),
        (make.pod("train-evaluator-0", exit=1),),
        (make.pod("train-evaluator-0", deleting=True),),
        (worker(0, exit=1, attempt=0),),
    ],
    ids=[
        "running",
        "one through",
        "through and deleted",
        "evaluator failed",
        "evaluator deleted",
        "an earlier attempt",
    ],
)
def test_nobody_to_blame(pods: tuple[Pod, ...]) -> None:
    assert blamed(*pods) is None


@pytest.mark.parametrize(
    ("pods", "name"),
    [
        ((worker(0, exit=1, at=LATE), worker(1, exit=137, at=EARLY)), "train-worker-1"),
        ((worker(0, exit=160, at=EARLY), worker(1, exit=1, at=LATE)), "train-worker-1"),
        ((worker(0, exit=160, at=LATE), worker(1, exit=160, at=EARLY)), "train-worker-1"),
        ((worker(0, exit=1, at=EARLY), worker(1, phase="Failed", status_reason="Evicted")), "train-worker-1"),
        ((worker(0, exit=1, at=EARLY), worker(1, deleting=True)), "train-worker-1"),
        ((worker(0, exit=160, at=EARLY), worker(1, exit=160, at=LATE, deleting=True)), "train-worker-1"),
        ((worker(0, exit=139, at=EARLY), worker(1, exit=139, at=EARLY)), "train-worker-0"),
    ],
    ids=[
        "the first",
        "the specific one, though the peer failure came first",
        "among peer failures the first",
        "an eviction, though its peer exited 1",
        "a deletion, though its peer exited 1",
        "a deletion, though it ended as a peer failure",
        "the lowest name if all is equal",
    ],
)
@pytest.mark.parametrize("order", [1, -1])
def test_the_one_to_blame(pods: tuple[Pod, ...], name: str, order: int) -> None:
    failure = blamed(*pods[::order])
    assert failure is not None
    assert failure.name == name


def test_a_pod_that_is_certainly_gone_was_disrupted() -> None:
    failure = blamed(worker(1, exit=1, at=EARLY), gone=((Role.WORKER, 0),))
    assert failure is not None
    assert (failure.name, failure.cause, failure.reason) == ("train-worker-0", Cause.DISRUPTION, "Vanished")


@pytest.mark.parametrize(("fields", "lost"), [({}, True), ({"deleting": True}, True), ({"exit": 137}, False)])
def test_a_pod_on_a_lost_node_was_disrupted_unless_it_had_ended(fields: dict[str, Any], lost: bool) -> None:
    job = make.job(worker=4)
    snapshot = Snapshot(job, (worker(0, node="dead", **fields), worker(1)), lost_nodes=frozenset({"dead"}))
    found = failures(observe_pods(snapshot, {"attempt": 1, "plan": make.plan(job).to_status()}), {}, frozenset())
    assert [(f.name, f.reason == "NodeLost") for f in found] == [("train-worker-0", lost)]
    if lost:
        assert found[0].cause is Cause.DISRUPTION
        assert "node dead is gone or not ready" in found[0].message


@pytest.mark.parametrize(
    ("code", "message", "reason"), [(143, "bye", "Deleted"), (143, '{"message": "saved"}', "Error"), (1, "no", "Error")]
)
def test_a_deletion_is_the_reason_of_a_program_that_its_signal_ended(code: int, message: str, reason: str) -> None:
    pod = make.pod(deleting=True, exit=code, at="2026-01-01T00:00:05Z")
    assert pod.termination is not None
    ended = make.pod(deleting=True, termination=replace(pod.termination, message=message))
    found = failure_of(make.observed(make.job("OneDevice"), ended), (Role.WORKER, 0), RestartPolicy.EXIT_CODE)
    assert (found.reason, found.cause) == (reason, Cause.DISRUPTION)


def test_only_160_without_a_disruption_is_a_peer_failure() -> None:
    for fields, peer_failure in (({}, True), ({"deleting": True}, False), ({"disruption": "DeletionByPodGC"}, False)):
        failure = blamed(worker(0, exit=160, **fields))
        assert failure is not None
        assert failure.is_peer_failure is peer_failure


def test_last_failure_keeps_the_end_of_the_message_and_leaves_out_what_is_unknown() -> None:
    failure = Failure((Role.WORKER, 0), "train-worker-0", Cause.PERMANENT, 1, "Error", "x" * 5000 + "end", EARLY)
    status = failure.to_status(20)
    assert len(status["message"]) == 4096
    assert status["message"].endswith("end")
    assert (status["role"], status["index"], status["exitCode"], status["time"]) == ("worker", 0, 1, EARLY)
    JobStatus.model_validate({"lastFailure": status})
    vanished = blamed(gone=((Role.WORKER, 2),))
    assert vanished is not None
    assert set(vanished.to_status(20)) == {"role", "index", "reason", "cause", "action", "message"}


@pytest.mark.parametrize(
    ("code", "policy", "phase"),
    [
        (1, "ExitCode", "Failed"),
        (127, "ExitCode", "Failed"),
        (137, "ExitCode", "Restarting"),
        (1, "OnFailure", "Restarting"),
    ],
)
def test_f3_an_init_container_that_ends_a_pod_is_named_and_judged_by_the_policy(
    code: int, policy: str, phase: str
) -> None:
    world = World.begun(make.job(worker={"replicas": 2, "restartPolicy": policy}))
    world.fails_to_begin("train-worker-1", "prepare", code, "copying\nno such bucket")
    assert world.phase == phase
    failure = world.status["lastFailure"]
    assert (failure["container"], failure["exitCode"]) == ("prepare", code)
    assert failure["message"] == "copying\nno such bucket"
    what = f"train-worker-1: its init container prepare ended with exit code {code} (Error)"
    assert world.message("Failed" if phase == "Failed" else "Restarting").startswith(what)


def test_it_reads_as_a_sentence() -> None:
    assert str(blamed(worker(0, exit=137))) == "train-worker-0 ended with exit code 137 (Error)"
    assert str(blamed(worker(0, deleting=True))) == "train-worker-0 ended (Deleted)"
