"""Reconcile a job whose spec is not valid, or is no longer valid after an edit, or that is quarantined.

Running pods continue, none is created or deleted for the edit, and the status follows the pods. Only runPolicy is
obeyed, as far as it is valid by itself: suspend, activeDeadlineSeconds, clean-up, expiry, force deletion. A start that
exceeds its deadline is released: a partial gang must not hold GPUs because of a mistake in an edit.
"""

from __future__ import annotations

from dataclasses import replace

from tfgpujob.api import RunPolicy, read_run_policy
from tfgpujob.core.observed.observed_pods import ObservedPods, observe_pods
from tfgpujob.core.observed.ownership import has_own_pods, is_dispatched
from tfgpujob.core.observed.packed import spec_of
from tfgpujob.core.observed.plan import Plan
from tfgpujob.core.observed.snapshot import Config, Event, Outcome, Snapshot
from tfgpujob.core.policies import deadlines, ensure_pods, finished, force_delete, kueue, start, start_timeout, suspend
from tfgpujob.core.policies.context import delete_old_pods
from tfgpujob.core.status import replica_statuses
from tfgpujob.core.status.builder import StatusBuilder
from tfgpujob.names import Condition, Phase, Reason


def reconcile(snapshot: Snapshot, builder: StatusBuilder, problems: str, config: Config) -> Outcome:
    """Policy of a job with an invalid spec, or in quarantine. `problems`: what is wrong with it, for people."""
    policy = read_run_policy({"spec": spec_of(snapshot.job)})
    if builder.finished:
        outcome = finished.reconcile(snapshot, builder, policy)
    else:
        outcome = _refuse(snapshot, builder, policy, problems, config)
    outcome = kueue.with_workload(outcome, snapshot, config, builder.now)
    return force_delete.with_forced_deletes(outcome, snapshot, policy.force_delete_after_seconds, builder.now)


def _refuse(snapshot: Snapshot, builder: StatusBuilder, policy: RunPolicy, problems: str, config: Config) -> Outcome:
    elsewhere = is_dispatched(snapshot.job) and not has_own_pods(snapshot)
    if elsewhere and not policy.suspend and kueue.runs_elsewhere(snapshot):
        return Outcome()  # the status is MultiKueue's as long as it runs there
    if snapshot.quarantined:
        reason, known = Reason.BUDGET_EXCEEDED, builder.is_true(Condition.QUARANTINED)
        builder.set(Condition.QUARANTINED, True, Reason.BUDGET_EXCEEDED, problems)
    else:
        reason, known = Reason.INVALID_SPEC, builder.reason(Condition.ACCEPTED) == Reason.INVALID_SPEC
        builder.set(Condition.ACCEPTED, False, Reason.INVALID_SPEC, problems)
    begun = bool(builder.fields.get("plan"))
    outcome = _keep_running(snapshot, builder, policy, config) if begun else _pending(builder)
    event = Event("Warning", str(reason), problems)
    return outcome if known else replace(outcome, events=(event, *outcome.events))


def _pending(builder: StatusBuilder) -> Outcome:
    builder.set_phase(Phase.PENDING)
    return Outcome(status=builder.build())


def _keep_running(snapshot: Snapshot, builder: StatusBuilder, policy: RunPolicy, config: Config) -> Outcome:
    if (stopped := _stopped(snapshot, builder, policy, config)) is not None:
        return stopped
    observed = observe_pods(snapshot, builder.fields)
    replica_statuses.update(builder, observed)
    if builder.is_true(Condition.SUSPENDED) or observed.succeeded(observed.members.chief):
        # No deadline applies: there are no pods, or the decider has succeeded, which is recorded once the spec is
        # valid.
        return Outcome(status=builder.build())
    due = deadlines.active_deadline(policy, builder.fields)
    if due is not None and builder.now >= due:
        return finished.deadline_exceeded(snapshot, builder, policy)
    if observed.pods:
        return _started(snapshot, builder, policy, observed)
    return Outcome(status=builder.build(), deletes=delete_old_pods(snapshot, builder.attempt), requeue_at=due)


def _stopped(snapshot: Snapshot, builder: StatusBuilder, policy: RunPolicy, config: Config) -> Outcome | None:
    """It is suspended, waits for Kueue, or was suspended for idle GPUs."""
    if policy.suspend:
        return suspend.reconcile(snapshot, builder, None)
    if why := kueue.stopped_by(snapshot, builder, None, config):
        return suspend.stop(snapshot, builder, None, Reason.WAITING_FOR_ADMISSION, why)
    if suspend.is_for(builder, Reason.NOT_USED):
        return suspend.stop(snapshot, builder, None, Reason.NOT_USED, builder.message(Condition.SUSPENDED))
    return None


def _started(snapshot: Snapshot, builder: StatusBuilder, policy: RunPolicy, observed: ObservedPods) -> Outcome:
    """The attempt has pods: all ready, still starting, or past a deadline."""
    start.report_running(builder, observed)
    found = start_timeout.exceeded(builder, policy, observed)
    if found is None:
        due = (at for at in deadlines.attempt_deadlines(builder, policy, observed) if at is not None)
        return Outcome(status=builder.build(), requeue_at=min(due, default=None))
    if start.fails_on_refusal(policy):
        finished.fail(builder, found.reason, found.message)
        return finished.finish(snapshot, builder, policy)
    return ensure_pods.release(snapshot, builder, observed, found, Plan.from_status(builder.fields["plan"]))
