"""Restart replicas by themselves, while the rest of the attempt continues.

The persisted intent is one status write: `restarts` of their status.restartRecords is increased by one. Only then are
their stale pods deleted; when those are gone and backoffUntil has passed, the new pods are created (ensure_pods.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from tfgpujob.api import RestartPolicy
from tfgpujob.core.observed import restart_records
from tfgpujob.core.observed.members import ReplicaId
from tfgpujob.core.observed.observed_pods import has_failed
from tfgpujob.core.observed.plan import replica_specs
from tfgpujob.core.observed.restart_records import RestartRecord
from tfgpujob.core.observed.snapshot import Event, Outcome, Pod
from tfgpujob.core.policies import finished
from tfgpujob.core.policies.context import ReconcileContext, delete_pods
from tfgpujob.core.policies.restart import backoff_limit, restart_scope
from tfgpujob.core.policies.restart.failure import Cause, Failure, failure_of, peer_failure_grace, root_cause
from tfgpujob.core.status import progress, replica_statuses
from tfgpujob.core.status.builder import moment, timestamp
from tfgpujob.names import Condition, Phase, Reason, Role
from tfgpujob_contract.exit_codes import ExitCode


def restart_replicas(ctx: ReconcileContext, failures: Sequence[Failure]) -> Outcome | None:
    """The failed replicas, and those of their restart scope. None: the job has failed, and the builder has the
    reason.
    """
    builder, spec = ctx.builder, ctx.spec
    causes = restart_scope.independent_failures(spec, failures)
    for failure in causes:
        limit, in_a_row = spec.run_policy.backoff_limit, _record(ctx, failure.replica).in_a_row
        exceeded = backoff_limit.count_restart(builder, limit, failure, in_a_row)
        if exceeded is not None:
            last_failure = failure.to_status(spec.run_policy.failure_log_lines)
            finished.fail(builder, exceeded.reason, exceeded.message, last_failure)
            return None
    cause = root_cause(causes)
    builder.put("lastFailure", cause.to_status(spec.run_policy.failure_log_lines))
    replicas = restart_scope.replicas_to_restart(spec, ctx.plan, failures)
    message = f"{cause}; what starts again: {', '.join(ctx.observed.name(replica) for replica in sorted(replicas))}."
    _set_conditions(ctx, cause, replicas, message)
    return _restart(ctx, causes, replicas, message)


def restart_with(
    ctx: ReconcileContext,
    failures: Sequence[Failure],
    replicas: frozenset[ReplicaId],
    message: str,
    delay: timedelta,
) -> Outcome:
    """The Outcome that restarts these replicas after failures that have been counted, with one backoff for all."""
    _set_conditions(ctx, root_cause(failures), replicas, message)
    return _restart(ctx, failures, replicas, message, delay)


def restart_optional(ctx: ReconcileContext) -> Outcome | None:
    """Policy: a failed evaluator restarts as its restartPolicy says, and a worker that was to join a gang is replaced.
    It costs no restart, however often."""
    evaluators = (replica for replica in ctx.members.pods if replica[0] is Role.EVALUATOR)
    for replica in (*evaluators, *ctx.members.joining):
        policy = _evaluator_policy(ctx) if replica[0] is Role.EVALUATOR else RestartPolicy.ALWAYS
        pod = ctx.observed.pods.get(replica)
        if (
            pod is None
            or not (has_failed(pod) or ctx.observed.lost(replica))
            or _record(ctx, replica).last_counted == pod.uid
        ):
            continue
        failure = failure_of(ctx.observed, replica, policy)
        # A joining worker has lost its leader: mostly the gang has ended, or all start again.
        grace_ends = peer_failure_grace(failure, ctx.now) if replica[0] is not Role.EVALUATOR else None
        if grace_ends is not None and ctx.now < grace_ends:
            return ctx.requeue(grace_ends)
        # A worker that has left a resized gang, and is to join it again, has not failed.
        if replica[0] is Role.EVALUATOR or failure.exit_code != ExitCode.STOPPED:
            ctx.builder.put("lastFailure", failure.to_status(ctx.spec.run_policy.failure_log_lines))
        if failure.cause is not Cause.PERMANENT:
            replicas = frozenset({replica})
            return _restart(ctx, [failure], replicas, f"{failure}; it starts again, and the job goes on.")
        _put_records(ctx, {replica: replace(_record(ctx, replica), last_counted=pod.uid)})
        text = f"{failure}; by its restartPolicy ({policy}) it stays so, and the job goes on without it."
        return replace(ctx.requeue(), events=(Event("Warning", str(Reason.REPLICA_FAILED), text),))
    return None


def _evaluator_policy(ctx: ReconcileContext) -> RestartPolicy:
    specs = replica_specs(ctx.spec)
    return specs[Role.EVALUATOR].restart_policy if Role.EVALUATOR in specs else RestartPolicy.EXIT_CODE


def _restart(
    ctx: ReconcileContext,
    causes: Sequence[Failure],
    replicas: frozenset[ReplicaId],
    message: str,
    delay: timedelta | None = None,
) -> Outcome:
    """The Outcome whose intent records the restart of `replicas`, and which deletes their pods. Without a `delay`, each
    has its own."""
    delays = {failure.replica: _delay(ctx, failure) if delay is None else delay for failure in causes}
    longest = max(delays.values())
    failed = {failure.replica for failure in causes}
    _put_records(ctx, {r: _next_record(ctx, r, delays.get(r, longest), failed=r in failed) for r in replicas})
    if progress.reporter(ctx.observed) in replicas:
        progress.clear(ctx.builder)
        progress.clear_stalled(ctx.builder, Reason.REPLICA_RESTARTING, message)
    left = replace(ctx.observed, pods={r: pod for r, pod in ctx.observed.pods.items() if r not in replicas})
    replica_statuses.update(ctx.builder, left)
    # Objects that were refused before are created again together with them, and delay no other meanwhile.
    ctx.builder.put("retry", None)
    required = replicas & {*ctx.members.required}
    if any(not ctx.spec.runs_on_without({role}) for role, _ in required):
        ctx.builder.put("attemptStartTime", timestamp(ctx.now + longest))
    status = ctx.builder.build()
    return Outcome(
        status=status,
        intent=status,
        deletes=delete_pods(ctx.observed.pods[r] for r in sorted(replicas) if r in ctx.observed.pods),
        events=(Event("Warning", "Restarting", message),),
        requeue_at=ctx.now + min(delays.values()),
    )


def _record(ctx: ReconcileContext, replica: ReplicaId) -> RestartRecord:
    """The replica's record; its failures in a row are reset if its pod has lived for STABLE_AFTER."""
    record = restart_records.read(ctx.builder.fields).get(replica, RestartRecord())
    pod = ctx.observed.pods.get(replica)
    return replace(record, in_a_row=0) if pod is not None and _lived(ctx, pod) >= backoff_limit.STABLE_AFTER else record


def _lived(ctx: ReconcileContext, pod: Pod) -> timedelta:
    """By one clock, its node's, if that has recorded its end: the operator's may be far ahead of it."""
    ended = pod.termination.finished_at if pod.termination is not None else ""
    if ended and pod.started_at:
        return moment(ended) - moment(pod.started_at)
    return ctx.now - moment(pod.created_at) if pod.created_at else timedelta()


def _delay(ctx: ReconcileContext, failure: Failure) -> timedelta:
    disrupted = failure.cause is Cause.DISRUPTION
    tries = _record(ctx, failure.replica).in_a_row + 1
    return backoff_limit.delay(tries, disrupted=disrupted, seed=f"{failure.name}/replica")


def _next_record(ctx: ReconcileContext, replica: ReplicaId, delay: timedelta, *, failed: bool) -> RestartRecord:
    before, pod = _record(ctx, replica), ctx.observed.pods.get(replica)
    return replace(
        before,
        restarts=max(before.restarts, pod.replica_restart if pod else 0) + 1,
        last_counted=pod.uid if pod and failed else before.last_counted,
        in_a_row=before.in_a_row + failed,
        backoff_until=timestamp(ctx.now + delay),
    )


def _put_records(ctx: ReconcileContext, records: dict[ReplicaId, RestartRecord]) -> None:
    known = restart_records.read(ctx.builder.fields)
    ctx.builder.put("restartRecords", restart_records.to_status({**known, **records}))


def _set_conditions(ctx: ReconcileContext, cause: Failure, replicas: frozenset[ReplicaId], message: str) -> None:
    builder = ctx.builder
    reason = Reason.DISRUPTED if cause.cause is Cause.DISRUPTION else Reason.RETRYABLE_FAILURE
    if ctx.spec.runs_on_without({role for role, _ in replicas}):
        if builder.is_true(Condition.RUNNING):
            builder.set(Condition.RUNNING, True, Reason.REPLICA_RESTARTING, message)
        return
    builder.set(Condition.RUNNING, False, reason, message)
    builder.set(Condition.RESTARTING, True, reason, message)
    builder.set_phase(Phase.RESTARTING)
