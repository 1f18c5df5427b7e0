"""What holds of every status that is written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tests.harness.history import Change
from tests.harness.promises.truth import Truth, conditions

from tfgpujob.core.status.builder import moment
from tfgpujob_contract.goodput import PARTS

PROGRESS_EVERY = 15.0
"""Seconds: the least that can be set."""
PROGRESS_WRITES = 4
_TERMINAL = ("Succeeded", "Failed", "Finished")


def terminal_is_final(change: Change, truth: Truth) -> Iterator[str]:
    """Terminal conditions exclude each other and never change back."""
    del truth
    before, now = _true(_old(change)), _true(change.object)
    if {"Succeeded", "Failed"} <= now:
        yield "Succeeded and Failed are both True"
    for condition in _TERMINAL:
        if condition in before - now:
            yield f"{condition} changed back"
    if bool({"Succeeded", "Failed"} & now) != ("Finished" in now):
        yield "Finished is not Succeeded or Failed"
    if "Finished" in before and _end(_old(change)) != _end(change.object):
        yield "a terminal condition was written again"


def generation_is_observed(change: Change, truth: Truth) -> Iterator[str]:
    """observedGeneration never runs ahead, nor back."""
    del truth
    before = (_old(change).get("status") or {}).get("observedGeneration", 0)
    now = (change.object.get("status") or {}).get("observedGeneration", 0)
    if now > change.object["metadata"]["generation"] or now < before:
        yield f"{before} → {now}"


def outcome_is_true(change: Change, truth: Truth) -> Iterator[str]:
    """Succeeded is said only when a deciding replica did exit 0; ReplicaFailed only when one did not."""
    uid = change.object["metadata"]["uid"]
    if "Succeeded" in _true(change.object) - _true(_old(change)):
        counts = change.object["status"].get("plan", {}).get("counts", {})
        decider = "chief" if counts.get("chief") else "worker"
        if _shares_parts(change.object["spec"]):
            if not any(job == uid for job, _, _ in truth.successes):
                yield "Succeeded, but no worker ever exited 0"
        elif (uid, decider, "0") not in truth.successes:
            yield f"Succeeded, but {decider} 0 never exited 0"
    reason = conditions(change.object).get("Failed", {}).get("reason")
    if reason == "ReplicaFailed" and not truth.failures.get(uid):
        yield "ReplicaFailed, but none failed"


def the_end_counts_no_pod_that_goes(change: Change, truth: Truth) -> Iterator[str]:
    """A terminal status is not written again, so that what is deleted after it is not counted as active."""
    del truth
    policy = change.object["spec"].get("runPolicy")
    kept = isinstance(policy, Mapping) and policy.get("cleanPodPolicy") == "None"
    if kept or "Finished" not in _true(change.object) - _true(_old(change)):
        return
    for role, counts in (change.object["status"].get("replicaStatuses") or {}).items():
        if counts.get("active"):
            yield f"{role} {counts}"


def _shares_parts(spec: Mapping[str, Any]) -> bool:
    """Whether the first worker that finds all rows predicted ends the job."""
    worker = spec.get("replicaSpecs", {}).get("worker") or {}
    predicts = (spec.get("trainer") or {}).get("mode") == "predict"
    return predicts and ("minReplicas" in worker or "maxReplicas" in worker)


def spares_stay_spare(change: Change, truth: Truth) -> Iterator[str]:
    """As many workers as there are spares are never required."""
    del truth
    plan = (change.object.get("status") or {}).get("plan") or {}
    if len(plan.get("absent") or ()) < plan.get("spares", 0):
        yield f"{plan['spares']} spares, and without {plan.get('absent')} the others train"


def failures_are_counted_once(change: Change, truth: Truth) -> Iterator[str]:
    """`restarts` and `disruptions` never exceed the attempts that really failed or lost a pod.

    Of a job whose replicas start again on their own, it is the pods that count.
    """
    uid, status = change.object["metadata"]["uid"], change.object.get("status") or {}
    really = {"restarts": truth.failed_by_themselves(uid), "disruptions": truth.losses.get(uid, set())}
    for field, starts in really.items():
        count = status.get(field, 0)
        if count > len(starts):
            yield f"{field} {count}, really {sorted(starts)}"
        if count < (_old(change).get("status") or {}).get(field, 0):
            yield f"{field} went down"


def stalls_are_real(change: Change, truth: Truth) -> Iterator[str]:
    """Stalled is said only of a job whose training stood still."""
    if "Stalled" in _true(change.object) and change.object["metadata"]["uid"] not in truth.stalled:
        yield "the training got on"


def only_idle_jobs_are_suspended(change: Change, truth: Truth) -> Iterator[str]:
    """A job of which any GPU is used is neither GPUsIdle nor suspended for it."""
    found = (change.object.get("status") or {}).get("conditions") or ()
    idle = any(c["status"] == "True" and c["reason"] == "NotUsed" for c in found)
    if idle and change.object["metadata"]["uid"] not in truth.unused:
        yield "its GPUs are used"


def time_adds_up(change: Change, truth: Truth) -> Iterator[str]:
    """Each second since the job was created is counted once, and no account is taken back."""
    del truth
    told = (change.object.get("status") or {}).get("goodput")
    before = (_old(change).get("status") or {}).get("goodput") or {}
    if not told or told == before:
        return
    whole = int((moment(told["time"]) - moment(change.object["metadata"]["creationTimestamp"])).total_seconds())
    seconds = sum(told.get(part, 0) for part in PARTS)
    if seconds != whole:
        yield f"{seconds} s of {whole} s are told"
    if before.get("time", "") > told["time"]:
        yield f"{before['time']} → {told['time']}"
    for part in ("backoff", "suspended"):
        if told.get(part, 0) < before.get(part, 0):
            yield f"{part} went down"


def progress_is_seldom(change: Change, truth: Truth) -> Iterator[str]:
    """How far a job is costs at most one write an interval; one that was held up may come with the next."""
    now, uid = _told_at(change.object), change.object["metadata"]["uid"]
    if not now or now == _told_at(_old(change)):
        return
    since = truth.now - PROGRESS_WRITES * PROGRESS_EVERY
    told = [at for at in truth.told.get(uid, []) if at > since]
    truth.told[uid] = [*told, truth.now]
    if len(told) >= PROGRESS_WRITES:
        yield f"{len(told) + 1} writes since {since:.0f}"


def _old(change: Change) -> Mapping[str, Any]:
    assert change.old is not None
    return change.old


def _true(job: Mapping[str, Any]) -> set[str]:
    return {kind for kind, condition in conditions(job).items() if condition["status"] == "True"}


def _end(job: Mapping[str, Any]) -> list[Any]:
    found = [condition for kind, condition in conditions(job).items() if kind in _TERMINAL]
    return [*found, (job.get("status") or {}).get("completionTime")]


def _told_at(job: Mapping[str, Any]) -> str:
    return str(((job.get("status") or {}).get("progress") or {}).get("time", ""))
