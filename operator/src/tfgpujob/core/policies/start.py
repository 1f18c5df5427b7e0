"""The status of an attempt's start: a gang starts as a whole or not at all.

An attempt begins with a status write that records it (attempt, plan, attemptStartTime): the persisted intent without
which no pod is created. If the API server refuses a pod, or they are not all ready in time, the attempt is over: the
next one is recorded with its backoff (retry.notBefore), and the pods of the old attempt, which nothing records any
more, are deleted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from typing import Any

from tfgpujob.api import RunPolicy, StartPolicy
from tfgpujob.core.membership import messages
from tfgpujob.core.observed import restart_records
from tfgpujob.core.observed.observed_pods import ObservedPods
from tfgpujob.core.observed.plan import Plan
from tfgpujob.core.policies import backoff
from tfgpujob.core.policies.deadlines import silence_ends
from tfgpujob.core.policies.refusals import Problem
from tfgpujob.core.status import progress
from tfgpujob.core.status.builder import StatusBuilder, moment, timestamp
from tfgpujob.core.status.diagnosis import without_replica
from tfgpujob.names import Condition, Phase, Reason


def next_attempt(
    builder: StatusBuilder, plan: Plan, *, not_before: datetime | None = None, refusals: int = 0, first: str = ""
) -> None:
    """Records the next attempt. The caller sets the conditions."""
    builder.put("attempt", builder.attempt + 1)
    plan = replace(plan, members=plan.members.of_new_attempt())
    builder.put("plan", plan.to_status())
    builder.put("attemptStartTime", timestamp(not_before or builder.now))
    builder.put("retry", _retry(not_before, refusals, first))
    builder.put("restartRecords", restart_records.of_next_attempt(builder.fields))
    builder.put("digests", None)
    progress.clear(builder)
    builder.put(
        "replicaStatuses",
        {
            str(role): {"desired": plan.members.pods_of(role), "ready": 0, "active": 0, "succeeded": 0, "failed": 0}
            for role in plan.counts
        },
    )
    builder.put("ready", f"0/{len(plan.members.required)}")


def report_restarting(builder: StatusBuilder, reason: Reason, message: str) -> None:
    """Set the conditions and the phase of an attempt that replaces one that had started."""
    builder.set(Condition.CREATED, False, reason, message)
    builder.set(Condition.RUNNING, False, reason, message)
    builder.set(Condition.RESTARTING, True, reason, message)
    progress.clear_stalled(builder, reason, message)
    builder.set_phase(Phase.RESTARTING)


def _retry(not_before: datetime | None, refusals: int, first: str, others: Iterable[str] = ()) -> dict[str, Any] | None:
    fields = {
        "notBefore": timestamp(not_before) if not_before else None,
        "refusals": refusals or None,
        "object": first or None,
        "others": sorted(others) or None,
    }
    return {key: value for key, value in fields.items() if value is not None} or None


def clear_refusals(builder: StatusBuilder) -> None:
    """All objects are created. The number of refusals is kept for the backoff until the job is Running."""
    failed = 0 if builder.is_true(Condition.RUNNING) else int((builder.fields.get("retry") or {}).get("refusals") or 0)
    builder.put("retry", _retry(None, failed, ""))


def not_before(builder: StatusBuilder) -> datetime | None:
    """The end of the backoff; in the past, once it is over. None: no wait."""
    text = (builder.fields.get("retry") or {}).get("notBefore")
    if not text:
        return None
    until = moment(text)
    return until if builder.now < until <= builder.now + backoff.LONGEST else min(until, builder.now)


def needs_edit(builder: StatusBuilder) -> bool:
    """True if the template was refused, so that only an edit helps (a restart of another replica retries it as
    well).
    """
    waits = bool(builder.refused) and not_before(builder) is None
    return waits and builder.reason(Condition.ACCEPTED) == Reason.TEMPLATE_REFUSED


def refused_by_api_server(builder: StatusBuilder) -> bool:
    """Accepted=False though the spec is valid: the API server refused an object, until a retry succeeds."""
    return builder.reason(Condition.ACCEPTED) in {Reason.NAME_TAKEN, Reason.TEMPLATE_REFUSED}


def release(builder: StatusBuilder, plan: Plan, found: Problem, *, created_some: bool) -> None:
    """Records that this start failed, and the backoff of the next one. Under startPolicy Fail the caller ends the
    job."""
    wait, refusals = _next_try(builder, found)
    builder.put("lastFailure", without_replica(str(found.reason), found.message, found.pod_reason))
    if created_some:
        next_attempt(builder, plan, not_before=wait, refusals=refusals, first=found.object)
    else:
        builder.put("retry", _retry(wait, refusals, found.object))
        builder.put("attemptStartTime", timestamp(wait or builder.now))
    builder.set(found.condition, False, found.reason, found.message)
    if found.condition is Condition.ACCEPTED:
        builder.set(Condition.CREATED, False, found.reason, found.message)
    builder.set(Condition.RUNNING, False, found.reason, found.message)
    builder.set_phase(Phase.PENDING)


def report_missing(builder: StatusBuilder, found: Problem, others: Iterable[str] = ()) -> None:
    """Record that a created attempt lacks an object which isn't required, and when its creation is retried.

    `others`: refused together with `found.object`. Objects that need no edit keep their earlier time of retry.
    """
    wait, refusals = _next_try(builder, found)
    due = not_before(builder)
    if wait is None and due is not None and due > builder.now:
        wait = due
    builder.put("retry", _retry(wait, refusals, found.object, {*others} - {found.object}))
    if found.condition is Condition.ACCEPTED:
        builder.set(Condition.ACCEPTED, False, found.reason, found.message)
    else:
        builder.set(Condition.CREATED, True, found.reason, f"What runs goes on. {found.message}")


def _next_try(builder: StatusBuilder, found: Problem) -> tuple[datetime | None, int]:
    """When to retry (None: only an edit helps), and the number of refusals by then."""
    refusals = int((builder.fields.get("retry") or {}).get("refusals") or 0) + 1
    if found.retry_cap is None:
        return None, refusals
    seed = f"{builder.attempt}/{found.object}"
    return builder.now + backoff.delay(refusals, first=2, cap=found.retry_cap, seed=seed), refusals


def fails_on_refusal(policy: RunPolicy) -> bool:
    return policy.start_policy is StartPolicy.FAIL


def report_running(builder: StatusBuilder, observed: ObservedPods) -> None:
    """Sets Running, and what follows from it, by whether all required replicas are ready."""
    if all(observed.ready(r) for r in observed.members.required):
        builder.set(Condition.RUNNING, True, *messages.why_running(observed))
        if builder.is_true(Condition.RESTARTING):
            builder.set(Condition.RESTARTING, False, Reason.ALL_READY, f"Attempt {builder.attempt} is running.")
        builder.set_phase(Phase.RUNNING)
        if "object" not in (builder.fields.get("retry") or {}):
            clear_refusals(builder)
    elif not builder.is_true(Condition.RUNNING):
        report_not_ready(builder, observed)


def report_not_ready(builder: StatusBuilder, observed: ObservedPods) -> None:
    """Sets Running to False, and why."""
    patient = silence_ends(builder) is not None
    builder.set(Condition.RUNNING, False, *messages.why_not_ready(observed, patient=patient))
