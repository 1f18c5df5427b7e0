"""Starting an attempt: all of it or nothing.

An attempt begins with a status write that names it (attempt, plan, attemptStartTime) and so licenses its pods. If
the API server refuses one of them, or they are not all ready in time, the attempt is over: the next one is written
with the moment before which it must not begin, and the pods of the old one, now without a licence, go.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tfgpujob.api import RunPolicy, StartPolicy
from tfgpujob.core.observed.observed_pods import View
from tfgpujob.core.observed.ownership import Ownership, pod_ownership, service_ownership
from tfgpujob.core.observed.plan import Plan
from tfgpujob.core.observed.snapshot import Kind, Pod, Refusal
from tfgpujob.core.policies import backoff
from tfgpujob.core.status import progress
from tfgpujob.core.status.builder import Draft, moment, timestamp
from tfgpujob.core.status.diagnosis import advice, without_replica
from tfgpujob.names import Condition, Phase, Reason


def begin(draft: Draft, plan: Plan, *, not_before: datetime | None = None, refusals: int = 0, first: str = "") -> None:
    """Writes the next attempt into the draft. Conditions are the caller's."""
    draft.put("attempt", draft.attempt + 1)
    draft.put("plan", plan.to_status())
    draft.put("attemptStartTime", timestamp(not_before or draft.now))
    draft.put("retry", _retry(not_before, refusals, first))
    draft.put("restartRecords", None)
    progress.forget(draft)
    draft.put(
        "replicaStatuses",
        {str(r): {"desired": n, "ready": 0, "active": 0, "succeeded": 0, "failed": 0} for r, n in plan.counts.items()},
    )
    draft.put("ready", f"0/{len(plan.required())}")


def _retry(not_before: datetime | None, refusals: int, first: str, others: Iterable[str] = ()) -> dict[str, Any] | None:
    fields = {
        "notBefore": timestamp(not_before) if not_before else None,
        "refusals": refusals or None,
        "object": first or None,
        "others": sorted(others) or None,
    }
    return {key: value for key, value in fields.items() if value is not None} or None


def all_is_created(draft: Draft) -> None:
    """Nothing is refused any more. How often the start has failed counts until it is through."""
    failed = 0 if draft.is_true(Condition.RUNNING) else int((draft.fields.get("retry") or {}).get("refusals") or 0)
    draft.put("retry", _retry(None, failed, ""))


def not_before(draft: Draft) -> datetime | None:
    """When it is tried again; the past, once the wait is over. None: nothing waits for a time."""
    text = (draft.fields.get("retry") or {}).get("notBefore")
    if not text:
        return None
    until = moment(text)
    return min(until, draft.now) if backoff.over(until, draft.now) else until


def refused_last(draft: Draft) -> frozenset[str]:
    """Names of the objects that are tried again later, or only after an edit."""
    retry = draft.fields.get("retry") or {}
    return frozenset(name for name in (retry.get("object"), *retry.get("others", ())) if name)


def waits_for_edit(draft: Draft) -> bool:
    """The template was refused: only another template helps, until somebody else starts again and all is tried anew."""
    waits = bool(refused_last(draft)) and not_before(draft) is None
    return waits and draft.reason(Condition.ACCEPTED) == Reason.TEMPLATE_REFUSED


@dataclass(frozen=True, slots=True)
class Problem:
    """Why the attempt could not be created, in words for a person."""

    condition: Condition
    reason: Reason
    message: str
    object: str
    retry_cap: float | None
    """Seconds between tries at most; None: only an edit helps."""
    while_running: str = ""
    """The message, where the rest of the attempt runs and its template can't just be edited. Empty: the same."""


def problem(refusals: tuple[Refusal, ...], job_uid: str, attempt: int) -> Problem | None:
    """The refusal to report: the one that needs a person most. None if all that is needed is patience."""
    found = problems(refusals, job_uid, attempt)
    return min(found, key=lambda p: (p.retry_cap is not None, p.condition != Condition.ACCEPTED), default=None)


def problems(refusals: tuple[Refusal, ...], job_uid: str, attempt: int) -> list[Problem]:
    """Of all refusals that need more than patience."""
    return [p for p in (_problem(refusal, job_uid, attempt) for refusal in refusals) if p is not None]


def _problem(refusal: Refusal, job_uid: str, attempt: int) -> Problem | None:
    what = f"{refusal.kind} {refusal.name}"
    if refusal.code == 409:
        return name_taken(refusal.kind, refusal.name) if _is_foreign(refusal, job_uid, attempt) else None
    said = f"{refusal.message.rstrip('.')}."
    if refusal.code in {400, 422}:
        text = f"{_template_of(refusal)}: {what} was refused: {said}"
        running = f"{text} What runs goes on: suspend the job, correct the template, and resume it."
        alone = f"{text} Correct the template."
        return Problem(Condition.ACCEPTED, Reason.TEMPLATE_REFUSED, alone, refusal.name, None, running)
    if "exceeded quota" in refusal.message:
        message = f"{what} does not fit: {said} Nothing is held meanwhile; it is tried again."
        return Problem(Condition.CREATED, Reason.QUOTA_EXCEEDED, message, refusal.name, 60)
    message = f"{what} was refused: {said} It is tried again."
    return Problem(Condition.CREATED, Reason.FORBIDDEN, message, refusal.name, 300)


def _template_of(refusal: Refusal) -> str:
    """The field that shapes the refused pod."""
    return f"spec.replicaSpecs.{_role_of(refusal.name)}.template" if refusal.kind is Kind.POD else "spec"


def _role_of(pod_name: str) -> str:
    """Of <job>-<role>-<index>; empty for a service's name."""
    return ("", "", *pod_name.rsplit("-", 2))[-2]


def refused_from_outside(draft: Draft) -> bool:
    """The spec is valid and yet not accepted: the API server said no, and only its yes takes that back."""
    return draft.reason(Condition.ACCEPTED) in {Reason.NAME_TAKEN, Reason.TEMPLATE_REFUSED}


def name_taken(kind: Kind, name: str) -> Problem:
    message = (
        f"metadata.name: the {kind.lower()} {name} belongs to somebody else. "
        f"Delete or rename that {kind.lower()}, or give this job another name; it is checked again until then."
    )
    return Problem(Condition.ACCEPTED, Reason.NAME_TAKEN, message, name, 30, f"{message} What runs goes on.")


def _is_foreign(refusal: Refusal, job_uid: str, attempt: int) -> bool:
    holder = refusal.holder
    if holder is None:
        return False
    if isinstance(holder, Pod):
        return pod_ownership(holder, job_uid, attempt) is Ownership.FOREIGN
    return service_ownership(holder, job_uid) is Ownership.FOREIGN


def release(draft: Draft, plan: Plan, found: Problem, *, created_some: bool) -> None:
    """Writes that this start failed, and when the next is due. Under startPolicy Fail the caller ends the job."""
    wait, refusals = _next_try(draft, found)
    draft.put("lastFailure", without_replica(str(found.reason), found.message))
    if created_some:
        begin(draft, plan, not_before=wait, refusals=refusals, first=found.object)
    else:
        draft.put("retry", _retry(wait, refusals, found.object))
        draft.put("attemptStartTime", timestamp(wait or draft.now))
    draft.set(found.condition, False, found.reason, found.message)
    if found.condition is Condition.ACCEPTED:
        draft.set(Condition.CREATED, False, found.reason, found.message)
    draft.set(Condition.RUNNING, False, found.reason, found.message)
    draft.set_phase(Phase.PENDING)


def go_on_without(draft: Draft, found: Problem, others: Iterable[str] = ()) -> None:
    """Writes that an attempt whose required pods are all created lacks something, and when that is tried again.

    `others`: what waits together with `found.object`. Who needs no edit is not made to wait for one.
    """
    wait, refusals = _next_try(draft, found)
    due = not_before(draft)
    if wait is None and due is not None and due > draft.now:
        wait = due
    draft.put("retry", _retry(wait, refusals, found.object, {*others} - {found.object}))
    if found.condition is Condition.ACCEPTED:
        draft.set(Condition.ACCEPTED, False, found.reason, found.message)
    else:
        draft.set(Condition.CREATED, True, found.reason, f"What runs goes on. {found.message}")


def _next_try(draft: Draft, found: Problem) -> tuple[datetime | None, int]:
    """When to try again (None: only an edit helps), and how many tries have failed by then."""
    refusals = int((draft.fields.get("retry") or {}).get("refusals") or 0) + 1
    if found.retry_cap is None:
        return None, refusals
    seed = f"{draft.attempt}/{found.object}"
    return draft.now + backoff.delay(refusals, first=2, cap=found.retry_cap, seed=seed), refusals


def fails_at_once(policy: RunPolicy) -> bool:
    return policy.start_policy is StartPolicy.FAIL


def say_how_it_runs(draft: Draft, view: View) -> None:
    required = view.plan.required()
    if all(view.ready(r) for r in required):
        draft.set(Condition.RUNNING, True, Reason.ALL_READY, _all_ready(len(required)))
        if draft.is_true(Condition.RESTARTING):
            draft.set(Condition.RESTARTING, False, Reason.ALL_READY, f"Attempt {draft.attempt} is running.")
        draft.set_phase(Phase.RUNNING)
        if "object" not in (draft.fields.get("retry") or {}):
            all_is_created(draft)
    elif not draft.is_true(Condition.RUNNING):
        draft.set(Condition.RUNNING, False, *what_is_missing(view))


def _all_ready(required: int) -> str:
    return "The one required replica is ready." if required == 1 else f"All {required} required replicas are ready."


def what_is_missing(view: View) -> tuple[Reason, str]:
    """Why not all required replicas are ready, in one line."""
    waiting = [r for r in view.plan.required() if not view.ready(r)]
    blocked = [(r, view.pods[r]) for r in waiting if r in view.pods and view.pods[r].waiting_reason]
    total = len(view.plan.required())
    summary = f"{total - len(waiting)} of {total} required replicas are ready"
    if not blocked:
        return Reason.STARTING, f"{summary}."
    replica, pod = blocked[0]
    detail = f": {pod.waiting_message}" if pod.waiting_message else ""
    what_to_do = f" {advice(pod.waiting_reason)}".rstrip()
    return Reason.REPLICA_NOT_READY, f"{summary}; {view.name(replica)}: {pod.waiting_reason}{detail}{what_to_do}"
