"""Executes the due change of the members (core/membership/changes.py): first its intent, then the rest."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from tfgpujob.core.membership import changes
from tfgpujob.core.membership.changes import Change, next_change
from tfgpujob.core.observed import restart_records
from tfgpujob.core.observed.members import Limit
from tfgpujob.core.observed.observed_pods import observe_pods
from tfgpujob.core.observed.restart_records import RestartRecord
from tfgpujob.core.observed.snapshot import Event, Outcome
from tfgpujob.core.policies import start
from tfgpujob.core.policies.acceptance import accept
from tfgpujob.core.policies.begin_attempt import begin_attempt
from tfgpujob.core.policies.context import ReconcileContext, delete_pods, replace_attempt
from tfgpujob.core.status import replica_statuses
from tfgpujob.core.status.builder import timestamp
from tfgpujob.names import Condition, Phase, Reason, Role


def adjust(ctx: ReconcileContext) -> Outcome | None:
    """Policy: record which workers are there, and how many there is room for."""
    return _carry_out(ctx, next_change(changes.ADJUST, ctx))


def resize(ctx: ReconcileContext) -> Outcome | None:
    """Policy: another number of workers, by the leader of a running gang or by the next attempt."""
    return _carry_out(ctx, next_change(changes.RESIZE, ctx))


def _carry_out(ctx: ReconcileContext, change: Change | None) -> Outcome | None:
    match change:
        case changes.LookUp():
            return Outcome(lookups=change.pods)
        case changes.Record():
            return _record(ctx, change)
        case changes.Release():
            deletes = delete_pods(pod for pod in ctx.observed.surplus if pod.index >= change.beyond)
            return replace(ctx.requeue(ctx.now), deletes=deletes, certain=True, requeue_at=ctx.now)
        case changes.ByAttempt(why, None):
            return _by_attempt(ctx, why)
        case changes.ByAttempt(why, Limit() as limit):
            return _start_with_fewer(ctx, why, limit)
    return None


def _record(ctx: ReconcileContext, change: changes.Record) -> Outcome:
    """The Outcome whose intent is that the running attempt has these members."""
    builder, members = ctx.builder, change.members
    if change.leaving:
        _record_that_they_leave(ctx, change.leaving)
    if change.resizes or members.resize != ctx.members.resize:
        accept(builder, ctx.spec)
    if change.waits:
        builder.set(Condition.RUNNING, False, Reason.DISRUPTED, change.waits)
        builder.set(Condition.RESTARTING, True, Reason.DISRUPTED, change.waits)
        builder.put("attemptStartTime", timestamp(ctx.now))
        builder.set_phase(Phase.RESTARTING)
    builder.put("plan", replace(ctx.plan, members=members).to_status())
    _count_resizes(ctx, change.resizes)
    observed = observe_pods(ctx.snapshot, builder.fields)
    replica_statuses.update(builder, observed)
    start.report_running(builder, observed)
    status = builder.build()
    surplus = delete_pods(observed.surplus) if members.resize is None else ()
    events = (change.event,) if change.event is not None else ()
    return Outcome(status=status, intent=status, deletes=surplus, events=events, requeue_at=ctx.now)


def _record_that_they_leave(ctx: ReconcileContext, indexes: Collection[int]) -> None:
    """The pod that replaces one that leaves has a higher replica-restart label, as after a restart. It does not count
    against backoffLimit."""
    records = restart_records.read(ctx.builder.fields)
    for index in indexes:
        known = records.get((Role.WORKER, index), RestartRecord())
        records[Role.WORKER, index] = replace(known, restarts=known.restarts + 1, backoff_until=timestamp(ctx.now))
    ctx.builder.put("restartRecords", restart_records.to_status(records))


def _start_with_fewer(ctx: ReconcileContext, why: str, limit: Limit) -> Outcome:
    builder, plan = ctx.builder, ctx.resolve()
    limited = replace(plan.members.resized(limit.workers), limit=limit)
    start.next_attempt(builder, replace(plan, members=limited))
    _count_resizes(ctx, 1)
    accept(builder, ctx.spec)
    builder.set(Condition.CREATED, False, Reason.SHRUNK, why)
    builder.set(Condition.RUNNING, False, Reason.SHRUNK, why)
    if builder.is_true(Condition.RESTARTING):
        builder.set(Condition.RESTARTING, True, Reason.SHRUNK, why)
    return replace_attempt(ctx, Event("Warning", str(Reason.SHRUNK), why))


def _by_attempt(ctx: ReconcileContext, why: str) -> Outcome:
    """The stop request makes all workers save at the same step, and the trainer's resume is exact for any number of
    them. It counts against no budget."""
    builder = ctx.builder
    if not builder.is_true(Condition.CREATED) and ctx.observed.missing():
        return begin_attempt(ctx.snapshot, builder, ctx.spec, ctx.config)
    start.next_attempt(builder, ctx.next_plan(keeps_limit=True))
    _count_resizes(ctx, 1)
    accept(builder, ctx.spec)
    start.report_restarting(builder, Reason.RESIZED, why)
    return replace_attempt(ctx, Event("Normal", str(Reason.RESIZED), why))


def _count_resizes(ctx: ReconcileContext, more: int) -> None:
    if more:
        ctx.builder.put("resizes", int(ctx.builder.fields.get("resizes") or 0) + more)
