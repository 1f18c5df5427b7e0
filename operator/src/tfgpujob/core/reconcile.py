"""Reconcile one job: from a Snapshot of it to an Outcome. Pure; the shell's worker applies the Outcome.

terminating, or managed by another controller            nothing, unless it has pods of ours
run by MultiKueue in another cluster                     its Workload                        policies/kueue.py
in quarantine                                            report it, create nothing           policies/invalid_spec.py
spec not valid                                           report it, create nothing           policies/invalid_spec.py
finished                                                 clean up, expire                    policies/finished.py
suspended, unless it had succeeded                       delete the pods                     policies/suspend.py
suspended for idle GPUs, and not edited since            the same                            policies/idle.py
in a queue of Kueue, or evicted from it                  wait, without pods                  policies/kueue.py
no attempt, or resumed                                   begin an attempt                    policies/begin_attempt.py
an attempt                                               the chain of policies               attempt.py
whatever was decided                                     force-delete pods on lost nodes     policies/force_delete.py
                                                         update the Workload                 policies/kueue.py

Then `finalize_status` turns the API server's answers into the last status write, and `report_refusals` shows refusals
while other creates have no answer yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from tfgpujob.api import JobSpec
from tfgpujob.api.rules.transition import MANAGED_BY
from tfgpujob.core import attempt
from tfgpujob.core.observed.observed_pods import observe_pods
from tfgpujob.core.observed.ownership import has_own_pods, is_dispatched, is_ours, other_manager
from tfgpujob.core.observed.parsed import parsed_spec
from tfgpujob.core.observed.plan import Plan, resolve
from tfgpujob.core.observed.snapshot import Config, Delete, Event, Object, Outcome, Refusal, Snapshot, StatusUpdate
from tfgpujob.core.policies import (
    finished,
    force_delete,
    idle,
    invalid_spec,
    kueue,
    quarantine,
    start,
    success,
    suspend,
)
from tfgpujob.core.policies.begin_attempt import begin_attempt
from tfgpujob.core.policies.ensure_pods import is_optional
from tfgpujob.core.policies.refusals import Problem, problem, problems
from tfgpujob.core.status import goodput, gpu_time, recovery
from tfgpujob.core.status.builder import StatusBuilder, differs, needs_write_now
from tfgpujob.core.status.diagnosis import without_replica
from tfgpujob.names import Condition, Reason

COALESCE = timedelta(seconds=10)
"""How long a status write that only changes counts and messages is deferred, so that it is combined with another."""

NOTHING = Outcome()


def reconcile(snapshot: Snapshot, now: datetime, config: Config) -> Outcome:
    """What is to be done for the job now. The docstring of `Outcome` says in which order."""
    job = snapshot.job
    if job["metadata"].get("deletionTimestamp"):
        return NOTHING
    builder = StatusBuilder(job, now)
    ours = is_ours(job)
    if not ours and has_own_pods(snapshot):
        # It was handed to another controller after its pods were created: this operator still manages them.
        changed = f"{other_manager(job)[0]}: {MANAGED_BY}. Its pods go on as they were started."
        return invalid_spec.reconcile(snapshot, builder, changed, config)
    if not ours and not (is_dispatched(job) and config.kueue_enabled):
        return NOTHING
    if snapshot.quarantined:
        return invalid_spec.reconcile(snapshot, builder, snapshot.quarantined, config)
    quarantine.lift(builder)
    spec = parsed_spec(job, config)
    if isinstance(spec, str):
        return invalid_spec.reconcile(snapshot, builder, spec, config)
    outcome = kueue.with_workload(_decide(snapshot, builder, spec, config), snapshot, config, now)
    outcome = _with_accounts(outcome, snapshot, spec, now)
    return force_delete.with_forced_deletes(outcome, snapshot, spec.run_policy.force_delete_after_seconds, now)


def _decide(snapshot: Snapshot, builder: StatusBuilder, spec: JobSpec, config: Config) -> Outcome:
    if builder.finished:
        return finished.reconcile(snapshot, builder, spec.run_policy)
    if (suspended := _suspended(snapshot, builder, spec)) is not None:
        return suspended
    if is_dispatched(snapshot.job):
        return kueue.wait_for_dispatch(snapshot, builder, spec, config)
    if (queued := kueue.wait_for_admission(snapshot, builder, spec, config)) is not None:
        return queued
    if not (builder.attempt and builder.fields.get("plan")) or builder.is_true(Condition.SUSPENDED):
        return begin_attempt(snapshot, builder, spec, config)
    return attempt.reconcile(snapshot, builder, spec, config)


def _suspended(snapshot: Snapshot, builder: StatusBuilder, spec: JobSpec) -> Outcome | None:
    if spec.run_policy.suspend and not _has_succeeded(snapshot, builder, spec):
        return suspend.reconcile(snapshot, builder, spec)
    return idle.still_stopped(snapshot, builder, spec)


def _has_succeeded(snapshot: Snapshot, builder: StatusBuilder, spec: JobSpec) -> bool:
    """True if the job had already succeeded when it was suspended. A pod that suspend stops may exit with 0, and has
    not succeeded."""
    if not builder.fields.get("plan") or builder.is_true(Condition.SUSPENDED) or is_dispatched(snapshot.job):
        return False
    return success.decided(spec, observe_pods(snapshot, builder.fields))


def _with_accounts(outcome: Outcome, snapshot: Snapshot, spec: JobSpec, now: datetime) -> Outcome:
    """The outcome with the accounts up to now in its intent, if it has one. `finalize_status` updates the last status
    write."""
    if outcome.intent is None or outcome.status is None:
        return outcome
    intent, status = (_accounted(s, snapshot, outcome.deletes, spec, now) for s in (outcome.intent, outcome.status))
    return replace(outcome, intent=intent, status=status)


def _accounted(status: Object, snapshot: Snapshot, deletes: Sequence[Delete], spec: JobSpec, now: datetime) -> Object:
    """The status that is about to be written, with its accounts of time. For a job that MultiKueue runs in another
    cluster, that cluster's operator keeps them."""
    if is_dispatched(snapshot.job):
        return status
    status = gpu_time.updated(status, snapshot, deletes, spec, now)
    return recovery.updated(goodput.updated(status, snapshot, now), snapshot, now)


def report_refusals(job: Object, outcome: Outcome, refusals: tuple[Refusal, ...], now: datetime) -> StatusUpdate:
    """The status that shows these refusals while other creates have no answer yet. No policy depends on it."""
    builder = StatusBuilder(job, now)
    found = problem(refusals, job["metadata"]["uid"], builder.attempt)
    if found is None or _is_known(builder, found):
        return StatusUpdate()
    if builder.is_true(Condition.CREATED):
        builder.set(Condition.CREATED, True, found.reason, f"What runs goes on. {found.while_running or found.message}")
    else:
        builder.set(Condition.CREATED, False, found.reason, found.message)
        if not _all_optional(outcome, refusals):
            builder.put("lastFailure", without_replica(str(found.reason), found.message))
    return StatusUpdate(builder.build(), (Event("Warning", str(found.reason), found.message),))


def finalize_status(
    snapshot: Snapshot, outcome: Outcome, refusals: tuple[Refusal, ...], now: datetime, config: Config
) -> StatusUpdate:
    """The last status write, the events and the requeue, once the API server has answered all creates.

    `snapshot.job` is the job as last read or written; `refusals` are the creates that were definitely refused.
    """
    update = _finalize_status(snapshot, outcome, refusals, now, config)
    if outcome.status is None or snapshot.quarantined:
        return update
    spec = parsed_spec(snapshot.job, config)
    if not isinstance(spec, JobSpec):
        return update
    if update.status is None and not refusals and goodput.has_last_words(snapshot):
        update = StatusUpdate(outcome.status, outcome.events, outcome.requeue_at)
    if update.status is None:
        return update
    status = _accounted(update.status, snapshot, outcome.deletes, spec, now)
    events = recovery.events(snapshot.job.get("status") or {}, status)
    return replace(update, status=status, events=(*update.events, *events))


def _finalize_status(
    snapshot: Snapshot, outcome: Outcome, refusals: tuple[Refusal, ...], now: datetime, config: Config
) -> StatusUpdate:
    job = snapshot.job
    if outcome.status is None:
        return StatusUpdate(events=outcome.events, requeue_at=outcome.requeue_at)
    if not refusals:
        return _write_or_defer(snapshot, outcome, outcome.status, now)

    builder = StatusBuilder(job, now)
    only_optional = _all_optional(outcome, refusals)
    keeps_running = builder.is_true(Condition.CREATED) or only_optional
    if not keeps_running:
        # The next start first creates the refused object alone: it must be a required one.
        refusals = tuple(refusal for refusal in refusals if not _all_optional(outcome, (refusal,)))
    uid = job["metadata"]["uid"]
    found = problem(refusals, uid, builder.attempt)
    if found is None:
        # A stale object of ours still has the name. Its deletion arrives as an event; requeue in case that is missed.
        return StatusUpdate(requeue_at=now + timedelta(seconds=1))
    if keeps_running:
        return _report_missing(job, outcome, found, problems(refusals, uid, builder.attempt), now)
    spec = parsed_spec(job, config)
    assert isinstance(spec, JobSpec), "only a valid job gets anything created"
    if start.fails_on_refusal(spec.run_policy) and found.reason is not Reason.NAME_TAKEN:
        finished.fail(builder, found.reason, found.message)
        return StatusUpdate(builder.build(), (finished.final_event(builder),), now)
    known = _is_known(builder, found)
    only_first = any(refusal.create == outcome.first for refusal in refusals)
    # All pods of this attempt are deleted, so the next one uses the current spec and defaults.
    before = builder.fields.get("plan")
    admitted = Plan.from_status(before).admission if before else None
    plan = resolve(spec, config, admitted, image_volumes=snapshot.image_volumes)
    start.release(builder, plan, found, created_some=not only_first)
    events = () if known else (Event("Warning", str(found.reason), found.message),)
    return StatusUpdate(builder.build(), events, start.not_before(builder) if only_first else now)


def _all_optional(outcome: Outcome, refusals: tuple[Refusal, ...]) -> bool:
    """Only evaluators and spares were refused: they are never required."""
    recorded = (outcome.status or {}).get("plan")
    plan = Plan.from_status(recorded) if recorded else None
    optional = {create.name for create in outcome.creates if plan is not None and is_optional(create, plan)}
    return all(refusal.create in optional for refusal in refusals)


def _is_known(builder: StatusBuilder, found: Problem) -> bool:
    return found.reason in {builder.reason(found.condition), builder.reason(Condition.CREATED)}


def _report_missing(
    job: Object, outcome: Outcome, found: Problem, found_all: Sequence[Problem], now: datetime
) -> StatusUpdate:
    """The attempt continues without the refused objects: report them, and retry with backoff."""
    assert outcome.status is not None
    caps = [p.retry_cap for p in found_all if p.retry_cap is not None]
    found = replace(found, message=found.while_running or found.message, retry_cap=min(caps, default=None))
    before = StatusBuilder(job, now)
    builder = StatusBuilder({**job, "status": {**outcome.status, "retry": before.fields.get("retry")}}, now)
    not_tried = before.refused - {create.name for create in outcome.creates}
    start.report_missing(builder, found, not_tried | {p.object for p in found_all})
    known = _is_known(before, found)
    events = () if known else (Event("Warning", str(found.reason), found.message),)
    return StatusUpdate(builder.build(), events, start.not_before(builder))


def _write_or_defer(snapshot: Snapshot, outcome: Outcome, status: Object, now: datetime) -> StatusUpdate:
    current = snapshot.job.get("status") or {}
    if not differs(current, status):
        return StatusUpdate(None, outcome.events, outcome.requeue_at)
    since = snapshot.deferred_since or now
    due = since + COALESCE
    # now < since: the clock was set back, so `due` may be far away.
    if needs_write_now(current, status) or not since <= now < due:
        return StatusUpdate(status, outcome.events, outcome.requeue_at)
    requeue_at = min(due, outcome.requeue_at) if outcome.requeue_at else due
    return StatusUpdate(None, outcome.events, requeue_at, deferred=True)
