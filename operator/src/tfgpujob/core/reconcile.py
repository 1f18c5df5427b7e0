"""One look at one job: what is, what should be, what to do. Pure; `shell/worker.py` carries it out.

gone or going, or another controller's    nothing
finished                                  clean up, expire              → finished.py
spec not valid                            say so, start nothing         → unreadable.py
suspended                                 stop the pods                 → suspend.py
no attempt, or resumed                    begin one                     → start.py
an attempt                                judge it: over? lost? complete it   → attempt.py
and besides                               pods stuck on a dead node           → force.py
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from tfgpujob.api import JobSpec
from tfgpujob.core import attempt
from tfgpujob.core.observed.ownership import is_ours
from tfgpujob.core.observed.parsed import parsed_spec
from tfgpujob.core.observed.plan import resolve
from tfgpujob.core.observed.snapshot import Conclusion, Config, Event, Object, Outcome, Refusal, Snapshot
from tfgpujob.core.policies import finished, force_delete, invalid_spec, start, suspend
from tfgpujob.core.policies.ensure_pods import is_evaluator
from tfgpujob.core.status import gpu_time
from tfgpujob.core.status.builder import Draft, differs, worth_a_write_now
from tfgpujob.core.status.diagnosis import without_replica
from tfgpujob.names import Condition, Reason

COALESCE = timedelta(seconds=10)
"""How long a change of counts and messages alone waits for another that is worth a write."""

NOTHING = Outcome()


def reconcile(snapshot: Snapshot, now: datetime, config: Config) -> Outcome:
    job = snapshot.job
    if job is None or job["metadata"].get("deletionTimestamp") or not is_ours(job):
        return NOTHING
    draft = Draft(job, now)
    spec = parsed_spec(job, config)
    if isinstance(spec, str):
        return invalid_spec.reconcile(snapshot, draft, spec)
    outcome = gpu_time.in_intent(_judge(snapshot, draft, spec, config), snapshot, spec, now)
    return force_delete.with_stuck_pods(outcome, snapshot, spec.run_policy.force_delete_after_seconds, now)


def _judge(snapshot: Snapshot, draft: Draft, spec: JobSpec, config: Config) -> Outcome:
    if draft.finished:
        return finished.reconcile(snapshot, draft, spec.run_policy)
    if spec.run_policy.suspend:
        return suspend.reconcile(snapshot, draft, spec)
    if not (draft.attempt and draft.fields.get("plan")) or draft.is_true(Condition.SUSPENDED):
        return attempt.begin(snapshot, draft, spec, config)
    return attempt.reconcile(snapshot, draft, spec, config)


def announce(job: Object, outcome: Outcome, refusals: tuple[Refusal, ...], now: datetime) -> Conclusion:
    """What is to be shown of these refusals while other creates have no answer. Nothing else hangs on it."""
    draft = Draft(job, now)
    found = start.problem(refusals, job["metadata"]["uid"], draft.attempt)
    if found is None or _is_known(draft, found):
        return Conclusion()
    if draft.is_true(Condition.CREATED):
        draft.set(Condition.CREATED, True, found.reason, f"What runs goes on. {found.while_running or found.message}")
    else:
        draft.set(Condition.CREATED, False, found.reason, found.message)
        if not _all_optional(outcome, refusals):
            draft.put("lastFailure", without_replica(str(found.reason), found.message))
    return Conclusion(draft.done(), (Event("Warning", str(found.reason), found.message),))


def conclude(
    snapshot: Snapshot, outcome: Outcome, refusals: tuple[Refusal, ...], now: datetime, config: Config
) -> Conclusion:
    """What remains to be said once the API server has answered.

    `snapshot.job` is the job as last read or written; `refusals` are the creates that it definitely refused.
    """
    conclusion = _conclude(snapshot, outcome, refusals, now, config)
    spec = parsed_spec(snapshot.job, config) if snapshot.job is not None and conclusion.status is not None else None
    if conclusion.status is None or not isinstance(spec, JobSpec):
        return conclusion
    return replace(conclusion, status=gpu_time.noted(conclusion.status, snapshot, outcome.deletes, spec, now))


def _conclude(
    snapshot: Snapshot, outcome: Outcome, refusals: tuple[Refusal, ...], now: datetime, config: Config
) -> Conclusion:
    job = snapshot.job
    if job is None or outcome.status is None:
        return Conclusion(events=outcome.events, requeue_at=outcome.requeue_at)
    if not refusals:
        return _write_if_worth(snapshot, outcome, outcome.status, now)

    draft = Draft(job, now)
    only_optional = _all_optional(outcome, refusals)
    goes_on = draft.is_true(Condition.CREATED) or only_optional
    if not goes_on:
        # What is tried first and alone the next time must be one that the others wait for.
        refusals = tuple(refusal for refusal in refusals if not _all_optional(outcome, (refusal,)))
    uid = job["metadata"]["uid"]
    found = start.problem(refusals, uid, draft.attempt)
    if found is None:
        # An old object of ours still has the name: its going is an event, and this is in case that is missed.
        return Conclusion(requeue_at=now + timedelta(seconds=1))
    if goes_on:
        return _go_on_without(job, outcome, found, start.problems(refusals, uid, draft.attempt), now)
    spec = parsed_spec(job, config)
    assert isinstance(spec, JobSpec), "only a valid job gets anything created"
    if start.fails_at_once(spec.run_policy) and found.reason is not Reason.NAME_TAKEN:
        finished.fail(draft, found.reason, found.message)
        return Conclusion(draft.done(), (finished.end_event(draft),), now)
    known = _is_known(draft, found)
    only_first = any(refusal.name == outcome.first for refusal in refusals)
    # Nothing of this attempt lives on, so the next one takes the spec, and the defaults, as they are now.
    start.release(draft, resolve(spec, config), found, created_some=not only_first)
    events = () if known else (Event("Warning", str(found.reason), found.message),)
    return Conclusion(draft.done(), events, start.not_before(draft) if only_first else now)


def _all_optional(outcome: Outcome, refusals: tuple[Refusal, ...]) -> bool:
    """Only evaluators were refused, and they are never required."""
    optional = {create.name for create in outcome.creates if is_evaluator(create)}
    return all(refusal.name in optional for refusal in refusals)


def _is_known(draft: Draft, found: start.Problem) -> bool:
    return found.reason in {draft.reason(found.condition), draft.reason(Condition.CREATED)}


def _go_on_without(
    job: Object, outcome: Outcome, found: start.Problem, problems: Sequence[start.Problem], now: datetime
) -> Conclusion:
    """What runs is worth more than what is missing: say so, and try again."""
    assert outcome.status is not None
    caps = [problem.retry_cap for problem in problems if problem.retry_cap is not None]
    found = replace(found, message=found.while_running or found.message, retry_cap=min(caps, default=None))
    before = Draft(job, now)
    draft = Draft({**job, "status": {**outcome.status, "retry": before.fields.get("retry")}}, now)
    not_tried = start.refused_last(before) - {create.name for create in outcome.creates}
    start.go_on_without(draft, found, not_tried | {problem.object for problem in problems})
    known = _is_known(before, found)
    events = () if known else (Event("Warning", str(found.reason), found.message),)
    return Conclusion(draft.done(), events, start.not_before(draft))


def _write_if_worth(snapshot: Snapshot, outcome: Outcome, status: Object, now: datetime) -> Conclusion:
    assert snapshot.job is not None
    current = snapshot.job.get("status") or {}
    if not differs(current, status):
        return Conclusion(None, outcome.events, outcome.requeue_at)
    since = snapshot.unsaid_since or now
    due = since + COALESCE
    # Before `since`: the clock has gone back, and who waits for it may wait for long.
    if worth_a_write_now(current, status) or not since <= now < due:
        return Conclusion(status, outcome.events, outcome.requeue_at)
    next_look = min(due, outcome.requeue_at) if outcome.requeue_at else due
    return Conclusion(None, outcome.events, next_look, unsaid=True)
