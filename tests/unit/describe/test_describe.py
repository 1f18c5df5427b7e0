"""Each broken job names its cause and the next step in the first lines; docs/describe.md shows them as they are."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.harness.fuzz_inputs import pod_of
from tests.harness.scenario import job
from tests.unit.describe.broken import BROKEN, Broken, page

from tfgpujob.describe import describe

PAGE = Path(__file__).resolve().parents[3] / "docs/describe.md"
FIRST_SCREEN = 24
NOW = datetime(2026, 1, 1, 1, tzinfo=UTC)
HEAD = """# What describe prints

`tfgpu describe NAME` says first what state the job is in, why, and what to do next. The facts follow. The first job
is shown whole, of the others the first lines. [Causes](failures.md) says what the operator does about each;
[goodput](goodput.md) explains the parts of the time.
"""


def written() -> str:
    first, *others = [(broken.title, page(broken)) for broken in BROKEN]
    shown = [first, *((title, text.partition("\n\n")[0]) for title, text in others)]
    return "\n".join([HEAD, *(f"## {title}\n\n```text\n{text}\n```\n" for title, text in shown)])


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.title)
def test_cause_and_next_step_are_on_the_first_screen(broken: Broken) -> None:
    lines = page(broken).splitlines()[:FIRST_SCREEN]
    following = next(i for i, line in enumerate(lines) if line.startswith("Next"))
    assert broken.cause in " ".join(" ".join(lines[:following]).split())
    assert broken.step in " ".join(" ".join(lines[following:]).split())


def test_the_documentation_shows_what_is_printed() -> None:
    if os.environ.get("TFGPU_GOLDEN") == "write":
        PAGE.write_text(written())
    assert PAGE.read_text() == written(), "run with TFGPU_GOLDEN=write"


def told(status: dict[str, Any] | None = None, **fields: Any) -> str:
    metadata = {"name": "digits", "namespace": "default", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"}
    whole = {**job("digits", worker=1, **fields), "metadata": metadata, "status": status or {}}
    return describe(whole, [], [], None, NOW)


def condition(kind: str, status: str, reason: str, message: str) -> dict[str, str]:
    at = "2026-01-01T00:30:00Z"
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": at}


def test_nobody_looks_after_the_job() -> None:
    shown = told()
    assert "Not seen" in shown
    why = "has not looked at it for 1h00m: it is not running, or does not watch this namespace"
    assert why in " ".join(shown.split())
    assert "tfgpu doctor" in shown
    metadata = {"name": "digits", "creationTimestamp": "2026-01-01T00:59:50Z"}
    assert "has not looked at it yet." in describe({**job("digits", worker=1), "metadata": metadata}, [], [], None, NOW)


def test_a_job_that_is_set_aside_says_so_before_that_it_runs() -> None:
    page = told({"phase": "Running", "conditions": [condition("Quarantined", "True", "BudgetExceeded", "It is slow.")]})
    assert "Set aside" in page
    assert "It is slow." in page
    assert "Make it smaller" in page


def test_somebody_else_looks_after_the_job() -> None:
    assert "spec.runPolicy.managedBy leaves it to a.b/c" in told(run_policy={"managedBy": "a.b/c"})
    assert "spec.managedBy leaves it to a.b/c" in told(spec={"managedBy": "a.b/c"})
    assert "create it again with that" in told(run_policy={"managedBy": "kueue.x-k8s.io/multikueue"})


def test_a_job_that_runs_in_another_cluster() -> None:
    elsewhere = {"spec": {"managedBy": "kueue.x-k8s.io/multikueue"}}
    assert "has not written its Workload yet" in told(**elsewhere)
    runs = {"phase": "Running", "conditions": [condition("Running", "True", "AllReady", "All pods are ready.")]}
    shown = told(runs, **elsewhere)
    assert "All pods are ready." in shown
    assert "MultiKueue runs it in another cluster" in shown
    assert "kubectl get workload digits -o jsonpath='{.status.clusterName}'" in shown
    ended = [condition(kind, "True", "Failed", "The job has failed.") for kind in ("Finished", "Failed")]
    shown = told({"phase": "Failed", "conditions": ended}, **elsewhere)
    assert "tfgpu restart digits" in shown
    assert "tfgpu logs" not in shown, "there are none, here or there"


def test_a_job_that_waits_in_a_queue_is_not_said_to_need_resuming() -> None:
    text = "Waits in the queue gpus: insufficient quota, 2 more needed."
    shown = told({"phase": "Pending", "conditions": [condition("Suspended", "True", "WaitingForAdmission", text)]})
    assert text in shown
    assert "tfgpu resume" not in shown
    assert "kubectl describe workload digits" in shown


def test_which_images_code_and_models_came_from() -> None:
    a, b = f"sha256:{'a' * 64}", f"sha256:{'b' * 64}"
    lines = told({"digests": {"code": [a, b], "models": [b]}}).splitlines()
    begin = next(i for i, line in enumerate(lines) if line.startswith("Images"))
    assert lines[begin : begin + 4] == [
        f"Images      code from {a} and",
        f"            {b}: the tag was moved, and",
        "            the pods of one attempt have different images",
        f"            models from {b}",
    ]
    assert "Images" not in told({})


def test_a_job_in_good_health() -> None:
    progress = {"epoch": 3, "totalEpochs": 20, "step": 120, "totalSteps": 800, "percent": 15, "loss": "0.31"}
    shown = told(
        {
            "phase": "Running",
            "ready": "1/1",
            "attempt": 1,
            "restarts": 3,
            "inPlaceRestarts": 2,
            "disruptions": 1,
            "lastRecovery": {"how": "Pods", "failed": "2026-01-01T00:00:00Z", "stepped": "2026-01-01T00:00:31.2Z"},
            "goodput": {"useful": 60, "recomputing": 2, "time": "2026-01-01T00:20:00Z"},
            "conditions": [condition("Running", "True", "AllReady", "All replicas are ready.")],
            "progress": {**progress, "examplesPerSecond": "5120", "remainingSeconds": 250, "gpuUsePercent": [93, 0]},
            "lastCheckpoint": {"step": 100, "directory": "/output/checkpoints", "seconds": 9},
        }
    )
    assert shown.splitlines()[0] == "default/digits: Running, 1/1 ready"
    line = "epoch 3/20, step 120/800 (15 %), loss 0.31, 5120 examples/s, about 4m10s left, GPU use 93 %, 0 %"
    assert line in " ".join(shown.split())
    assert "3 of 6 restarts spent (2 in place), 1 disruption, which spent none" in shown
    assert "no new step for 31s after the last, 2s of steps done again in all" in shown
    assert "step 100 in /output/checkpoints, saved in 9 s" in shown
    assert "tfgpu logs digits -f" in shown
    assert "AllReady  for 30m00s" in shown


def test_a_finished_job_names_no_checkpoint_before_the_last() -> None:
    saved = {"step": 54, "directory": "/output/checkpoints/step-0000000054"}
    assert "Checkpoint  step 54" in told({"phase": "Failed", "lastCheckpoint": saved})
    assert "Checkpoint" not in told({"phase": "Succeeded", "lastCheckpoint": saved})


def test_a_trainer_says_for_whom_it_waits() -> None:
    shown = told({"phase": "Running", "progress": {"phase": "waiting for peers", "waitsFor": ["digits-worker-1"]}})
    assert "waits for digits-worker-1 to start" in shown


def test_a_resize_in_place_says_what_it_waits_for() -> None:
    conditions = [
        condition("Created", "True", "QuotaExceeded", "What runs goes on. exceeded quota: q."),
        condition("Running", "True", "Resizing", "2 of 4 workers train; digits-worker-3: Unschedulable: no room."),
    ]
    shown = told({"phase": "Running", "conditions": conditions})
    assert shown.splitlines()[0].startswith("default/digits: Running, being resized")
    assert "2 of 4 workers train; digits-worker-3: Unschedulable: no room." in shown
    assert "exceeded quota: q." in shown.split("Next")[0]


def test_a_job_with_fewer_workers_than_it_asks_for_says_why() -> None:
    text = "3 of the 8 workers that replicas asks for train; digits-worker-3: Unschedulable: no room."
    shown = told({"phase": "Running", "conditions": [condition("Running", "True", "Shrunk", text)]})
    assert shown.splitlines()[0].startswith("default/digits: Running, with fewer workers")
    assert text in shown


@pytest.mark.parametrize("still", ["0/4 nodes are available: 4 Insufficient nvidia.com/gpu.", ""])
def test_of_a_gang_that_does_not_fit_what_lacks_is_told(still: str) -> None:
    """By a pod, or else by the operator, which has seen what the scheduler said before."""
    waits = "0/1 nodes are available: 1 rejection in Unreserve."
    owner = {"apiVersion": "tfgpu.dev/v1alpha1", "kind": "TFGPUJob", "name": "digits", "uid": "u", "controller": True}
    pods = []
    for index, message in enumerate((waits, still or waits)):
        labels = {"tfgpu.dev/job-name": "digits", "tfgpu.dev/replica-type": "worker", "tfgpu.dev/attempt": "1"}
        unscheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        metadata = {"name": f"digits-worker-{index}", "labels": labels, "ownerReferences": [owner]}
        pods.append({"metadata": metadata, "status": {"phase": "Pending", "conditions": [unscheduled]}})
    text = (
        "0 of 2 required replicas are ready; digits-worker-1: Unschedulable: 0/4 nodes are available: 4 Insufficient x."
    )
    status = {"phase": "Starting", "conditions": [condition("Running", "False", "ReplicaNotReady", text)]}
    metadata = {"name": "digits", "namespace": "default", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"}
    shown = describe({**job("digits", worker=2), "metadata": metadata, "status": status}, pods, [], None, NOW)
    head = " ".join(shown.partition("Next")[0].split())
    assert (still or "4 Insufficient x.") in head
    assert waits not in head


def test_a_stall_is_told_before_that_it_runs() -> None:
    conditions = [
        condition("Running", "True", "AllReady", "All replicas are ready."),
        condition("Stalled", "True", "NoProgress", "Nothing was done for more than 150 s."),
    ]
    shown = told({"phase": "Running", "conditions": conditions})
    assert shown.splitlines()[0].startswith("default/digits: Running, Stalled")
    assert "Nothing was done for more than 150 s." in shown


def test_a_suspended_job_says_how_to_go_on() -> None:
    shown = told({"phase": "Suspended", "conditions": [condition("Suspended", "True", "Suspended", "Stopped.")]})
    assert "tfgpu resume digits" in shown


def test_a_long_message_leaves_room_for_what_to_do() -> None:
    failure = {"role": "worker", "index": 0, "exitCode": 1, "cause": "Exception", "action": "Correct the program."}
    failure["message"] = "\n".join(f"line {i}" for i in range(40))
    failed = [condition("Failed", "True", "ReplicaFailed", "x"), condition("Finished", "True", "Failed", "x")]
    lines = told({"phase": "Failed", "conditions": failed, "lastFailure": failure}).splitlines()
    assert any("line 39" in line for line in lines[:FIRST_SCREEN])
    assert lines[2].strip() == "line 0", "the trainer's own sentence"
    assert any("Correct the program." in line for line in lines[:FIRST_SCREEN])


@pytest.mark.parametrize("phase", ["Failed", "Succeeded"])
def test_a_log_that_went_with_its_pod_is_not_advised(phase: str) -> None:
    """A container that runs on keeps its pod running, so that it is deleted at the job's end."""
    failure = {"role": "worker", "index": 0, "exitCode": 1, "cause": "Exception", "action": "Correct the program."}
    ended = [condition(kind, "True", phase, "It has ended.") for kind in (phase, "Finished")]
    status = {"phase": phase, "conditions": ended, **({"lastFailure": failure} if phase == "Failed" else {})}
    shown = told(status)
    assert "tfgpu logs" not in shown
    assert "spec.runPolicy.cleanPodPolicy: None." in shown
    assert "cleanPodPolicy" not in told(status, run_policy={"cleanPodPolicy": "None"})


def event(number: int, reason: str, message: str, *, day: int = 1) -> dict[str, Any]:
    at = f"2026-01-{day:02d}T{number // 3600:02d}:{number // 60 % 60:02d}:{number % 60:02d}Z"
    about = {"uid": "u", "kind": "TFGPUJob", "name": "digits"}
    return {"involvedObject": about, "reason": reason, "message": message, "firstTimestamp": at, "count": 1}


def past(*events: dict[str, Any], now: datetime = NOW) -> list[str]:
    metadata = {"name": "digits", "namespace": "default", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"}
    restarting = condition("Restarting", "True", "RetryableFailure", "attempt 500 follows.")
    whole = {**job("digits", worker=1), "metadata": metadata, "status": {"conditions": [restarting]}}
    return describe(whole, [], events, None, now).partition("Timeline (UTC)\n")[2].splitlines()


WAITS = {"conditions": [condition("Running", "False", "ReplicaNotReady", "0 of 1 required replicas are ready")]}
KILLED: dict[str, Any] = {
    "conditions": [condition("Failed", "True", "BackoffLimitExceeded", "ended")],
    "lastFailure": {"role": "worker", "index": 0, "cause": "Killed", "exitCode": 137},
}


@pytest.mark.parametrize("status", [WAITS, KILLED])
def test_f6_of_a_pod_without_a_reason_kubernetes_last_warning_is_quoted(status: dict[str, Any]) -> None:
    pod = pod_of("digits-worker-0", "digits")
    pod["status"] = {"phase": "Pending", "startTime": "2026-01-01T00:00:00Z"}
    about = {"uid": "uid-digits-worker-0", "kind": "Pod", "name": "digits-worker-0"}
    said = 'MountVolume.SetUp failed for volume "keys": secret "keys" not found'

    def warning(second: int, message: str, **other: str) -> dict[str, Any]:
        at = f"2026-01-01T00:00:{second:02d}Z"
        return {"involvedObject": about | other, "reason": "FailedMount", "message": message, "lastTimestamp": at}

    whole = {**job("digits", worker=1), "status": status}
    whole["metadata"] |= {"namespace": "default", "uid": "uid-digits", "creationTimestamp": "2026-01-01T00:00:00Z"}
    events = [warning(9, said), warning(8, "before"), warning(10, "of another", uid="another")]
    head, _, past = describe(whole, [pod], events, None, NOW).partition("Timeline (UTC)\n")
    assert f"digits-worker-0: FailedMount: {said}" in " ".join(head.split())
    assert [line for line in past.splitlines() if "FailedMount" in line] == [
        "  00:00:08  digits-worker-0: FailedMount: before",
        f"  00:00:09  digits-worker-0: FailedMount: {said}",
    ]


@pytest.mark.parametrize(
    ("reason", "message", "advised"),
    [
        ("Unhealthy", "Liveness probe failed: no answer", "Correct livenessProbe in"),
        ("Unhealthy", "Readiness probe failed: no answer", "find out who sent it"),
        ("FailedPostStartHook", "Exec lifecycle hook ([sh]) failed", "Correct lifecycle.postStart in"),
    ],
)
def test_whom_the_kubelet_has_killed_is_told_for_which_field(reason: str, message: str, advised: str) -> None:
    killed = {**KILLED["lastFailure"], "action": "Killed by SIGKILL: find out who sent it.", "message": message}
    whole = {**job("digits", worker=1), "status": {**KILLED, "lastFailure": killed}}
    whole["metadata"] |= {"namespace": "default", "uid": "uid-digits", "creationTimestamp": "2026-01-01T00:00:00Z"}
    warning = {"involvedObject": {"uid": "uid-digits-worker-0", "kind": "Pod"}, "reason": reason, "message": message}
    head = describe(whole, [pod_of("digits-worker-0", "digits")], [warning], None, NOW).partition("Timeline")[0]
    assert advised in head
    assert head.count(message) == 1


def test_an_event_of_a_megabyte_leaves_the_page_readable() -> None:
    whole = {**job("digits", worker=1), "status": KILLED}
    whole["metadata"] |= {"namespace": "default", "uid": "uid-digits", "creationTimestamp": "2026-01-01T00:00:00Z"}
    warning = {"involvedObject": {"uid": "uid-digits-worker-0"}, "reason": "Odd", "message": "x" * (1 << 20)}
    assert len(describe(whole, [pod_of("digits-worker-0", "digits")], [warning], None, NOW)) < 4000


def test_the_warning_that_names_what_ended_a_container_is_shown_not_a_later_one() -> None:
    whole = {**job("digits", worker=1), "status": KILLED}
    whole["metadata"] |= {"namespace": "default", "uid": "uid-digits", "creationTimestamp": "2026-01-01T00:00:00Z"}
    about = {"involvedObject": {"uid": "uid-digits-worker-0", "kind": "Pod"}}
    failed = {
        **about,
        "reason": "Unhealthy",
        "message": "Liveness probe failed: no",
        "lastTimestamp": "2026-01-01T00:00:01Z",
    }
    hook = {
        **about,
        "reason": "FailedPreStopHook",
        "message": "exited with 137",
        "lastTimestamp": "2026-01-01T00:00:02Z",
    }
    head = describe(whole, [pod_of("digits-worker-0", "digits")], [failed, hook], None, NOW).partition("Timeline")[0]
    assert "Liveness probe failed: no" in head
    assert "FailedPreStopHook" not in head
    assert "Correct livenessProbe" in head


def test_the_log_of_another_container_is_read_with_kubectl() -> None:
    failure = {**KILLED["lastFailure"], "cause": "Exception", "exitCode": 7, "container": "fetch"}
    whole = {**job("digits", worker=1), "status": {**KILLED, "lastFailure": failure}}
    whole["metadata"] |= {"namespace": "default", "uid": "uid-digits"}
    shown = describe(whole, [pod_of("digits-worker-0", "digits")], [], None, NOW)
    assert "kubectl logs digits-worker-0 -c fetch" in shown
    assert "tfgpu logs" not in shown


@pytest.mark.parametrize("missing", ["reason", "message"])
def test_an_event_may_lack_what_its_author_left_out(missing: str) -> None:
    whole = event(1, "Odd", "It rained.")
    kept = whole["message"] if missing == "reason" else whole["reason"]
    del whole[missing]
    assert any(line.endswith(f"  {kept}") for line in past(whole))


def test_a_reason_without_a_known_fix_is_followed_to_the_pods_events() -> None:
    pod = pod_of("digits-worker-0", "digits")
    gated = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "message": "Blocked by gates"}
    pod["status"] = {"phase": "Pending", "conditions": [gated]}
    whole = {**job("digits", worker=1), "status": {"conditions": [condition("Running", "False", "Starting", "x")]}}
    whole["metadata"] |= {"namespace": "default", "uid": "uid-digits", "creationTimestamp": "2026-01-01T00:00:00Z"}
    shown = describe(whole, [pod], [], None, NOW)
    assert "Next        kubectl describe pod digits-worker-0" in shown.splitlines()


def test_the_past_of_a_job_with_500_restarts_is_readable() -> None:
    events = [event(7 * n, "Restarting", f"attempt {n} follows.") for n in range(1, 501)]
    lines = past(*events)
    assert len(lines) == 31
    assert lines[0].endswith("(471 entries before these)")
    assert lines[-1] == "  00:58:20  Restarting: attempt 500 follows."
    assert not [line for line in lines if "00:30:00" in line], "the event has told it"


def test_what_happens_again_and_again_is_one_line_with_how_often() -> None:
    same = [event(60 * n, "Restarting", "worker-1 failed; what starts again: worker-1.") for n in range(1, 51)]
    assert past(*same)[-1] == (
        "  00:50:00  Restarting: worker-1 failed; what starts again: worker-1. (50 times since 00:01:00)"
    )


def test_days_are_told_when_it_lasts_for_days() -> None:
    lines = past(event(60, "Restarting", "a", day=3), now=datetime(2026, 1, 8, tzinfo=UTC))
    assert lines[-1] == "  2026-01-03 00:01:00  Restarting: a"
