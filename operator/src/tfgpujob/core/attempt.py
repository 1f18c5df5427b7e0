"""An attempt from its first write to its end: a chain of judges, each of which may settle the case."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from tfgpujob import names
from tfgpujob.api import JobSpec
from tfgpujob.core.observed.observed_pods import View, has_ended
from tfgpujob.core.observed.plan import ReplicaId, replica_specs, resolve
from tfgpujob.core.observed.snapshot import Config, Event, Outcome, Snapshot
from tfgpujob.core.policies import ensure_pods, finished, stall, start, start_timeout, success
from tfgpujob.core.policies.acceptance import accept
from tfgpujob.core.policies.context import Case, old_pods, open_case
from tfgpujob.core.policies.deadlines import active_deadline
from tfgpujob.core.policies.restart import gang, replica
from tfgpujob.core.policies.restart.failure import Failure, failures, stalled, to_blame
from tfgpujob.core.status.builder import Draft, moment, timestamp
from tfgpujob.names import Condition, Phase, Reason

ECHO_PATIENCE = timedelta(seconds=10)
"""How long to wait for the failure that a peer failure echoes."""

Judge = Callable[[Case], Outcome | None]


def begin(snapshot: Snapshot, draft: Draft, spec: JobSpec, config: Config) -> Outcome:
    """The first attempt, the one after a suspension, or after an edit of one that was never complete."""
    if draft.is_true(Condition.SUSPENDED):
        draft.set(Condition.SUSPENDED, False, Reason.RESUMED, "spec.runPolicy.suspend is off again.")
        draft.put("startTime", None)
    _skip_unknown_attempts(snapshot, draft)
    edited = start.waits_for_edit(draft)
    start.begin(draft, resolve(spec, config))
    draft.put("startTime", draft.fields.get("startTime") or timestamp(draft.now))
    draft.put("restarts", draft.fields.get("restarts", 0))
    draft.put("selector", f"{names.LABEL_JOB_NAME}={snapshot.job['metadata']['name']}" if snapshot.job else None)
    if edited:
        accept(draft, spec)
        draft.set(Condition.CREATED, False, Reason.STARTING, "The spec was edited: its pods are created anew.")
    if not start.refused_from_outside(draft):
        accept(draft, spec)
    draft.set_phase(Phase.STARTING)
    case = open_case(snapshot, draft, spec, config)
    draft.set(Condition.RUNNING, False, *start.what_is_missing(case.view))
    return ensure_pods.complete(case, licensed=False)


def _skip_unknown_attempts(snapshot: Snapshot, draft: Draft) -> None:
    """After a status that was wiped: the pods still know the numbers that are taken."""
    assert snapshot.job is not None
    uid = snapshot.job["metadata"]["uid"]
    draft.put("attempt", max([draft.attempt, *(pod.attempt for pod in snapshot.pods if pod.owner_uid == uid)]))


def reconcile(snapshot: Snapshot, draft: Draft, spec: JobSpec, config: Config) -> Outcome:
    case = open_case(snapshot, draft, spec, config)
    if not case.view.missing() and ensure_pods.has_service(case):
        _say_all_is_there(case)
    news = stall.note(case)
    for judge in _CHAIN:
        outcome = judge(case)
        if outcome is not None:
            break
    else:
        outcome = _running(case)
    return _with_news(_without_superseded(case, outcome), news)


def _with_news(outcome: Outcome, news: tuple[Event, ...]) -> Outcome:
    return outcome if outcome.lookups else replace(outcome, events=(*news, *outcome.events))


def _without_superseded(case: Case, outcome: Outcome) -> Outcome:
    """A replica's licence to start again stands: whatever else is decided, its old pod goes."""
    if outcome.lookups:
        return outcome
    known = {delete.uid for delete in outcome.deletes}
    more = replica.delete_pods(pod for pod in case.view.superseded.values() if pod.uid not in known)
    return replace(outcome, deletes=(*outcome.deletes, *more))


def _succeeded(case: Case) -> Outcome | None:
    """Once the deciders are through, nothing that happens to the others can fail the job."""
    if not success.decided(case.spec, case.view):
        return None
    patience_ends = success.patience_for_stragglers(case.spec, case.view, case.now)
    if patience_ends is not None:
        return case.waiting(patience_ends)
    unconfirmed = tuple(
        name
        for replica in success.stragglers(case.spec, case.view)
        if (name := case.view.name(replica)) not in case.snapshot.looked_up
    )
    if unconfirmed:
        return Outcome(lookups=unconfirmed)
    finished.succeed(case.draft, *success.in_words(case.spec, case.view))
    return _over(case)


def _ran_too_long(case: Case) -> Outcome | None:
    deadline = active_deadline(case.spec.run_policy, case.draft.fields)
    if deadline is None or case.now < deadline:
        return None
    return finished.too_long(case.snapshot, case.draft, case.spec.run_policy)


def _lost_or_failed(case: Case) -> Outcome | None:
    vanished = _vanished(case)
    unconfirmed = tuple(n for r in vanished if (n := case.view.name(r)) not in case.snapshot.absent)
    if unconfirmed:
        return Outcome(lookups=unconfirmed)
    policies = {role: replica.restart_policy for role, replica in replica_specs(case.spec).items()}
    found = failures(case.view, policies, frozenset(vanished))
    if not found:
        return None
    failure = to_blame(found)
    patience_ends = _patience_for_the_cause(case.view, failure, case.now)
    if patience_ends is not None and case.now < patience_ends:
        return case.waiting(patience_ends)
    return _again(case, found)


def _stands_still(case: Case) -> Outcome | None:
    stall_failure = stalled(case)
    return _again(case, [stall_failure]) if stall_failure else None


def _again(case: Case, found: Sequence[Failure]) -> Outcome:
    """After these failures: once more, or the end."""
    failure = to_blame(found)
    if case.spec.restarts_alone and case.draft.is_true(Condition.CREATED):
        return replica.again(case, found) or _over(case)
    next_plan = case.plan if _is_edited(case) else resolve(case.spec, case.config)
    if not gang.again(case.draft, case.spec, next_plan, failure):
        return _over(case)
    status = case.draft.done()
    return Outcome(
        status=status,
        intent=status,
        deletes=old_pods(case.snapshot, case.draft.attempt),
        events=(Event("Warning", "Restarting", f"{failure}; attempt {case.draft.attempt} follows."),),
        requeue_at=start.not_before(case.draft) or case.now,
    )


def _edited(case: Case) -> Outcome | None:
    """An attempt that is not complete can still be started otherwise; one that runs can't."""
    draft = case.draft
    refused_before = draft.reason(Condition.ACCEPTED) == Reason.IMMUTABLE_FIELD_CHANGED
    if not _is_edited(case):
        if not draft.is_true(Condition.ACCEPTED) and not start.refused_from_outside(draft):
            accept(draft, case.spec)
        return None
    if not refused_before and not draft.is_true(Condition.CREATED) and case.view.missing():
        return begin(case.snapshot, draft, case.spec, case.config)
    text = (
        "spec: strategy, replicaSpecs, gpu, trainer or image changed while an attempt runs. Its pods go on as they "
        "were started, and none is created. Restore the old values, or suspend the job, edit it, and resume it."
    )
    draft.set(Condition.ACCEPTED, False, Reason.IMMUTABLE_FIELD_CHANGED, text)
    event = Event("Warning", str(Reason.IMMUTABLE_FIELD_CHANGED), text)
    deletes = old_pods(case.snapshot, draft.attempt)
    return replace(_running(case), deletes=deletes, events=() if refused_before else (event,))


def _started_too_late(case: Case) -> Outcome | None:
    found = start_timeout.late(case.draft, case.spec.run_policy, case.view)
    if found is None or not (case.view.pods or case.draft.is_true(Condition.CREATED)):
        # Of what is not begun nothing is too late: its clock begins with its first pod (`starts_late`).
        return None
    if start.fails_at_once(case.spec.run_policy):
        finished.fail(case.draft, found.reason, found.message)
        return _over(case)
    return ensure_pods.release(case.snapshot, case.draft, case.view, found, resolve(case.spec, case.config))


def _incomplete(case: Case) -> Outcome | None:
    if not case.view.missing() and ensure_pods.has_service(case):
        return None
    if not _required_missing(case):
        _say_how_it_runs(case)
    return ensure_pods.complete(case, licensed=True)


def _running(case: Case) -> Outcome:
    _say_how_it_runs(case)
    return case.waiting()


def _say_all_is_there(case: Case) -> None:
    """Said before anything else is decided, so that the last word on a short job says it too."""
    draft = case.draft
    draft.set(Condition.CREATED, True, Reason.ALL_CREATED, ensure_pods.all_created(draft.attempt))
    if start.refused_from_outside(draft):
        accept(draft, case.spec)
    start.all_is_created(draft)


def _say_how_it_runs(case: Case) -> None:
    draft = case.draft
    if not case.view.missing() and not draft.is_true(Condition.CREATED):
        draft.set(Condition.CREATED, True, Reason.ALL_CREATED, ensure_pods.all_created(draft.attempt))
    start.say_how_it_runs(draft, case.view)


def _over(case: Case) -> Outcome:
    return finished.over(case.snapshot, case.draft, case.spec.run_policy)


def _is_edited(case: Case) -> bool:
    return case.spec.shape_hash != case.plan.spec_hash


def _vanished(case: Case) -> tuple[ReplicaId, ...]:
    """Required replicas that were created and now have no pod, nor a recorded success."""
    if not case.draft.is_true(Condition.CREATED):
        return ()
    return tuple(replica for replica in _required_missing(case) if not case.view.starts_again(replica))


def _required_missing(case: Case) -> tuple[ReplicaId, ...]:
    required = set(case.plan.required())
    return tuple(r for r in case.view.missing() if r in required)


def _patience_for_the_cause(view: View, failure: Failure, now: datetime) -> datetime | None:
    """While all that is seen is a peer's failure, its cause is still on its way: when to stop waiting for it."""
    everyone_ended = all(r in view.pods and has_ended(view.pods[r]) for r in view.plan.required())
    if not failure.is_echo or everyone_ended or not failure.finished_at:
        return None
    ended = moment(failure.finished_at)
    # A node whose clock is ahead must not hold up what is to be done.
    return ended + ECHO_PATIENCE if ended <= now else None


_CHAIN: tuple[Judge, ...] = (
    _succeeded,
    _ran_too_long,
    _lost_or_failed,
    _stands_still,
    replica.evaluator,
    _started_too_late,
    _edited,
    _incomplete,
)
