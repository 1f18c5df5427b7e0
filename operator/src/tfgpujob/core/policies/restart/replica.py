"""Replicas that start again on their own, while the rest of the attempt runs on.

Licensed by one status write: their records in status.restartRecords go up by one. Only then their pods are deleted;
when they are gone and backoffUntil has passed, the new ones are created (complete.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import timedelta

from tfgpujob.api import RestartPolicy
from tfgpujob.core.observed import restart_records
from tfgpujob.core.observed.observed_pods import has_failed
from tfgpujob.core.observed.plan import ReplicaId, replica_specs
from tfgpujob.core.observed.restart_records import RestartRecord
from tfgpujob.core.observed.snapshot import Delete, Event, Kind, Outcome, Pod
from tfgpujob.core.policies import finished
from tfgpujob.core.policies.context import Case
from tfgpujob.core.policies.restart import backoff_limit, restart_scope
from tfgpujob.core.policies.restart.failure import Cause, Failure, failure_of, to_blame
from tfgpujob.core.status import progress
from tfgpujob.core.status.builder import moment, timestamp
from tfgpujob.core.status.replica_statuses import ready_text, replica_statuses
from tfgpujob.names import Condition, Phase, Reason, Role


def again(case: Case, failures: Sequence[Failure]) -> Outcome | None:
    """The failed replicas, and whoever must go with them. None: the job has failed, and the draft says so."""
    draft, spec = case.draft, case.spec
    causes = restart_scope.causes(spec, failures)
    for failure in causes:
        limit, row = spec.run_policy.backoff_limit, _before(case, failure.replica).in_a_row
        over = backoff_limit.exhausted(draft, limit, failure, row)
        if over is not None:
            finished.fail(draft, *over, failure.to_status(spec.run_policy.failure_log_lines))
            return None
        backoff_limit.count_total(draft, failure)
    blamed = to_blame(causes)
    draft.put("lastFailure", blamed.to_status(spec.run_policy.failure_log_lines))
    replicas = restart_scope.together(spec, case.plan, failures)
    _say_so(case, blamed, replicas)
    return _license(case, causes, replicas, _announcement(case, blamed, replicas))


def evaluator(case: Case) -> Outcome | None:
    """A failed evaluator starts again as its restartPolicy says. It costs the job nothing, however often."""
    policy = _evaluator_policy(case)
    for replica in (r for r in case.plan.pods() if r[0] is Role.EVALUATOR):
        pod = case.view.pods.get(replica)
        if (
            pod is None
            or not (has_failed(pod) or case.view.lost(replica))
            or _before(case, replica).last_counted == pod.uid
        ):
            continue
        failure = failure_of(case.view, replica, policy)
        case.draft.put("lastFailure", failure.to_status(case.spec.run_policy.failure_log_lines))
        if failure.cause is not Cause.PERMANENT:
            replicas = frozenset({replica})
            return _license(case, [failure], replicas, f"{failure}; it starts again, and the job goes on.")
        _write(case, {replica: replace(_before(case, replica), last_counted=pod.uid)})
        text = f"{failure}; by its restartPolicy ({policy}) it stays so, and the job goes on without it."
        return replace(case.waiting(), events=(Event("Warning", str(Reason.REPLICA_FAILED), text),))
    return None


def _evaluator_policy(case: Case) -> RestartPolicy:
    specs = replica_specs(case.spec)
    return specs[Role.EVALUATOR].restart_policy if Role.EVALUATOR in specs else RestartPolicy.EXIT_CODE


def _license(case: Case, causes: Sequence[Failure], replicas: frozenset[ReplicaId], announcement: str) -> Outcome:
    waits = {failure.replica: _wait(case, failure) for failure in causes}
    longest = max(waits.values())
    by_replica = {failure.replica: failure for failure in causes}
    records = {
        replica: _next(case, replica, waits.get(replica, longest), failed=replica in by_replica) for replica in replicas
    }
    _write(case, records)
    if progress.reporter(case.view) in replicas:
        progress.forget(case.draft)
        progress.no_more(case.draft, Reason.REPLICA_RESTARTING, announcement)
    left = replace(case.view, pods={r: pod for r, pod in case.view.pods.items() if r not in replicas})
    case.draft.put("replicaStatuses", replica_statuses(left))
    case.draft.put("ready", ready_text(left))
    # Whoever was refused before is asked for again with them, and holds nobody up meanwhile.
    case.draft.put("retry", None)
    if any(
        not restart_scope.goes_on_without(case.spec, frozenset({r})) and r[0] is not Role.EVALUATOR for r in replicas
    ):
        case.draft.put("attemptStartTime", timestamp(case.now + longest))
    status = case.draft.done()
    return Outcome(
        status=status,
        intent=status,
        deletes=delete_pods(case.view.pods[r] for r in sorted(replicas) if r in case.view.pods),
        events=(Event("Warning", "Restarting", announcement),),
        requeue_at=case.now + min(waits.values()),
    )


def delete_pods(pods: Iterable[Pod]) -> tuple[Delete, ...]:
    """Deletes of those that are not going already."""
    return tuple(Delete(Kind.POD, pod.name, pod.uid) for pod in pods if not pod.deleting)


def _before(case: Case, replica: ReplicaId) -> RestartRecord:
    """The replica's record, its failures in a row forgotten if its pod has lived for long enough."""
    record = case.view.records.get(replica, RestartRecord())
    pod = case.view.pods.get(replica)
    proven = pod is not None and pod.created_at and case.now - moment(pod.created_at) >= backoff_limit.PROVEN
    return replace(record, in_a_row=0) if proven else record


def _wait(case: Case, failure: Failure) -> timedelta:
    disrupted = failure.cause is Cause.DISRUPTION
    tries = _before(case, failure.replica).in_a_row + 1
    return backoff_limit.wait(tries, disrupted=disrupted, seed=f"{failure.name}/replica")


def _next(case: Case, replica: ReplicaId, wait: timedelta, *, failed: bool) -> RestartRecord:
    before, pod = _before(case, replica), case.view.pods.get(replica)
    return RestartRecord(
        restarts=max(before.restarts, pod.replica_restart if pod else 0) + 1,
        last_counted=pod.uid if pod and failed else before.last_counted,
        in_a_row=before.in_a_row + failed,
        backoff_until=timestamp(case.now + wait),
    )


def _write(case: Case, records: dict[ReplicaId, RestartRecord]) -> None:
    case.draft.put("restartRecords", restart_records.to_status({**case.view.records, **records}))


def _say_so(case: Case, blamed: Failure, replicas: frozenset[ReplicaId]) -> None:
    draft, message = case.draft, _announcement(case, blamed, replicas)
    reason = Reason.DISRUPTED if blamed.cause is Cause.DISRUPTION else Reason.RETRYABLE_FAILURE
    if restart_scope.goes_on_without(case.spec, replicas):
        if draft.is_true(Condition.RUNNING):
            draft.set(Condition.RUNNING, True, Reason.REPLICA_RESTARTING, message)
        return
    draft.set(Condition.RUNNING, False, reason, message)
    draft.set(Condition.RESTARTING, True, reason, message)
    draft.set_phase(Phase.RESTARTING)


def _announcement(case: Case, blamed: Failure, replicas: frozenset[ReplicaId]) -> str:
    names = ", ".join(case.view.name(replica) for replica in sorted(replicas))
    return f"{blamed}; what starts again: {names}."
