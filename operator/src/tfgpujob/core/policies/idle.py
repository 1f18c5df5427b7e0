"""The condition GPUsIdle: a job that trains, and whose GPUs do nothing. With suspendIdleSeconds it is suspended.

A job is idle only by current reports of all its GPUs: what one pod does not report may be in use. A job that was
suspended for it stays so until its spec is edited, which needs no write into the spec.
"""

from __future__ import annotations

from tfgpujob.api import JobSpec
from tfgpujob.core.observed.admission import prebuilt_name
from tfgpujob.core.observed.plan import replica_specs
from tfgpujob.core.observed.snapshot import Event, Outcome, Snapshot
from tfgpujob.core.policies import suspend
from tfgpujob.core.policies.context import ReconcileContext
from tfgpujob.core.status import gpu_time
from tfgpujob.core.status.builder import StatusBuilder
from tfgpujob.core.status.progress import report_of
from tfgpujob.names import Condition, Reason, Role
from tfgpujob.units import duration


def update_condition(ctx: ReconcileContext) -> tuple[Event, ...]:
    """Sets it from the reports; returns an event if it became True."""
    seconds, limit = _seconds(ctx), ctx.spec.run_policy.suspend_idle_seconds or ctx.config.idle_seconds
    new = not ctx.builder.is_true(Condition.GPUS_IDLE)
    if seconds is None or not limit:
        return ()
    if seconds < limit:
        if not new:
            ctx.builder.set(Condition.GPUS_IDLE, False, Reason.USED, "The GPUs are used again.")
        return ()
    text = f"While it trains, none of its GPUs has done anything for more than {duration(limit)}."
    ctx.builder.set(Condition.GPUS_IDLE, True, Reason.NOT_USED, text)
    return (Event("Warning", str(Condition.GPUS_IDLE), text),) if new else ()


def unused(ctx: ReconcileContext) -> Outcome | None:
    """The suspension of a job of which all reports say that no GPU was used for suspendIdleSeconds."""
    limit, seconds = ctx.spec.run_policy.suspend_idle_seconds, _seconds(ctx)
    # MultiKueue's user resumes a job in the other cluster, where nothing of this is known.
    if limit is None or seconds is None or seconds < limit or prebuilt_name(ctx.job):
        return None
    text = f"None of its GPUs did anything for more than {duration(limit)}: tfgpu resume starts it again."
    return suspend.stop(ctx.snapshot, ctx.builder, ctx.spec, Reason.NOT_USED, text)


def still_stopped(snapshot: Snapshot, builder: StatusBuilder, spec: JobSpec) -> Outcome | None:
    """Policy of a job that was suspended for it: None once its spec was edited."""
    found = builder.condition(Condition.SUSPENDED)
    if not suspend.is_for(builder, Reason.NOT_USED) or found["observedGeneration"] != builder.generation:
        return None
    return suspend.stop(snapshot, builder, spec, Reason.NOT_USED, found["message"])


def _seconds(ctx: ReconcileContext) -> int | None:
    """For how long no GPU of the job was used; None if the use of any is unknown, such as that of a pod that has ended
    or is not in the cache."""
    held = {role: gpu_time.gpus_held(ctx.spec, role, one) for role, one in replica_specs(ctx.spec).items()}
    if held.get(Role.EVALUATOR):
        return None
    found = []
    for replica in ctx.members.required:
        if count := held.get(replica[0]):
            report = report_of(ctx.observed, ctx.snapshot.reports, replica)
            if report is None or report.gpu_idle_seconds is None or len(report.gpu_use_percent or ()) != count:
                return None
            found.append(report.gpu_idle_seconds)
    return min(found, default=None)
