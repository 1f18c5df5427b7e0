"""A job whose spec is not valid, or is not any more.

What runs goes on: an edit that is not valid starts nothing and stops nothing, and what the pods achieve is recorded.
Only what spec.runPolicy still says by itself is done: suspend, activeDeadlineSeconds, clean-up, expiry, forced deletes.
A start that takes too long is released: half a gang holds no GPUs for a mistake in an edit.
"""

from __future__ import annotations

from dataclasses import replace

from tfgpujob.api import RunPolicy, read_run_policy
from tfgpujob.core.observed.observed_pods import View, build_view
from tfgpujob.core.observed.plan import Plan
from tfgpujob.core.observed.snapshot import Event, Outcome, Snapshot
from tfgpujob.core.policies import deadlines, ensure_pods, finished, force_delete, start, start_timeout, suspend
from tfgpujob.core.policies.context import old_pods
from tfgpujob.core.status.builder import Draft
from tfgpujob.core.status.replica_statuses import ready_text, replica_statuses
from tfgpujob.names import Condition, Phase, Reason


def reconcile(snapshot: Snapshot, draft: Draft, problems: str) -> Outcome:
    """`problems`: what is wrong with the spec, for a person."""
    assert snapshot.job is not None
    policy = read_run_policy(snapshot.job)
    if draft.finished:
        outcome = finished.reconcile(snapshot, draft, policy)
    else:
        outcome = _refuse(snapshot, draft, policy, problems)
    return force_delete.with_stuck_pods(outcome, snapshot, policy.force_delete_after_seconds, draft.now)


def _refuse(snapshot: Snapshot, draft: Draft, policy: RunPolicy, problems: str) -> Outcome:
    known = draft.reason(Condition.ACCEPTED) == Reason.INVALID_SPEC
    draft.set(Condition.ACCEPTED, False, Reason.INVALID_SPEC, problems)
    outcome = _go_on(snapshot, draft, policy) if draft.fields.get("plan") else _wait(draft)
    event = Event("Warning", str(Reason.INVALID_SPEC), problems)
    return outcome if known else replace(outcome, events=(event, *outcome.events))


def _wait(draft: Draft) -> Outcome:
    draft.set_phase(Phase.PENDING)
    return Outcome(status=draft.done())


def _go_on(snapshot: Snapshot, draft: Draft, policy: RunPolicy) -> Outcome:
    if policy.suspend:
        return suspend.reconcile(snapshot, draft, None)
    view = build_view(snapshot, Plan.from_status(draft.fields["plan"]), draft.fields)
    draft.put("replicaStatuses", replica_statuses(view))
    draft.put("ready", ready_text(view))
    if draft.is_true(Condition.SUSPENDED) or view.succeeded(view.plan.chief()):
        # No clock runs: nothing does, or what decides is through and is told once the spec is mended.
        return Outcome(status=draft.done())
    due = deadlines.active_deadline(policy, draft.fields)
    if due is not None and draft.now >= due:
        return finished.too_long(snapshot, draft, policy)
    if view.pods:
        return _start(snapshot, draft, policy, view)
    return Outcome(status=draft.done(), deletes=old_pods(snapshot, draft.attempt), requeue_at=due)


def _start(snapshot: Snapshot, draft: Draft, policy: RunPolicy, view: View) -> Outcome:
    """What there is of an attempt: ready by now, on its way, or too late."""
    start.say_how_it_runs(draft, view)
    found = start_timeout.late(draft, policy, view)
    if found is None:
        due = (at for at in deadlines.clocks(draft, policy, view) if at is not None)
        return Outcome(status=draft.done(), requeue_at=min(due, default=None))
    if start.fails_at_once(policy):
        finished.fail(draft, found.reason, found.message)
        return finished.over(snapshot, draft, policy)
    return ensure_pods.release(snapshot, draft, view, found, view.plan)
