"""The conditions Stalled and Degraded: a running job without progress, or with a straggler.

Stalled     no step, evaluation batch or save was done for spec.runPolicy.stallSeconds, by the reporter's own account
Degraded    one worker of a synchronous job needs longer for its steps, and the others wait for it in every all-reduce

Both need a current progress report: a process that can't be reached is no stall. All durations come from the reports,
so an operator that has just restarted decides as one that has not.
"""

from __future__ import annotations

from statistics import median

from tfgpujob.api import JobSpec
from tfgpujob.core.observed.members import ReplicaId
from tfgpujob.core.observed.progress_report import Report
from tfgpujob.core.observed.snapshot import Event
from tfgpujob.core.policies.context import ReconcileContext
from tfgpujob.core.status.builder import StatusBuilder
from tfgpujob.core.status.progress import STALLS, report_of, reporter
from tfgpujob.names import Condition, Reason
from tfgpujob_contract.phases import TRAINING

SLOWER = 0.5
"""A straggler needs more time for a step than the others, by this share of theirs."""
NOTICEABLE_SECONDS = 0.02
"""And at least this many seconds: the shortest steps differ by chance."""
RECOVERED = 0.5
"""Hysteresis: a straggler has recovered when its excess has fallen to this share of what made it one."""
INPUT_BOUND = 0.3
"""Share of a worker's time spent waiting for input from which on the data is named as the cause."""


def update_conditions(ctx: ReconcileContext) -> tuple[Event, ...]:
    """Sets both conditions from the reports; returns an event for each that became True."""
    reported = report_of(ctx.observed, ctx.snapshot.reports, reporter(ctx.observed))
    if reported is None:
        return ()
    stalled = _update_stalled(ctx, reported)
    degraded = () if ctx.builder.is_true(Condition.STALLED) else _update_degraded(ctx)
    return (*stalled, *degraded)


def limit(spec: JobSpec) -> int:
    """Seconds without a step, an evaluation batch or a save after which the job is Stalled; 0: it never is."""
    if spec.run_policy.stall_seconds is not None:
        return spec.run_policy.stall_seconds
    return spec.trainer.watchdog.step_seconds // 2 if spec.trainer is not None else 0


def _update_stalled(ctx: ReconcileContext, reported: Report) -> tuple[Event, ...]:
    builder, seconds = ctx.builder, limit(ctx.spec)
    if not seconds or reported.phase not in STALLS or reported.idle_seconds < seconds:
        _clear(builder, Condition.STALLED, "The training gets on again.")
        return ()
    replica = blocking_replica(ctx)
    whose = f" {ctx.observed.name(replica)} holds up the others." if replica is not None else ""
    new = not builder.is_true(Condition.STALLED)
    text = f"While {reported.phase} after step {reported.step or 0}, nothing was done for more than {seconds} s.{whose}"
    builder.set(Condition.STALLED, True, Reason.NO_PROGRESS, text)
    return (Event("Warning", str(Condition.STALLED), text),) if new else ()


def blocking_replica(ctx: ReconcileContext) -> ReplicaId | None:
    """Among trainers without progress, the one that blocks the others: it is behind, or is not in an all-reduce
    itself.
    """
    stuck = {r: t for r, t in _reports(ctx).items() if 2 * t.idle_seconds >= limit(ctx.spec)}
    if len(stuck) < 2:
        return None
    first = max(t.step or 0 for t in stuck.values())
    behind = [r for r, t in stuck.items() if (t.step or 0) < first]
    behind = behind or [r for r, t in stuck.items() if not t.waits_for_peers]
    return min(behind) if 0 < len(behind) < len(stuck) else None


def _update_degraded(ctx: ReconcileContext) -> tuple[Event, ...]:
    builder, reported = ctx.builder, report_of(ctx.observed, ctx.snapshot.reports, reporter(ctx.observed))
    own = _own_seconds(ctx, reported) if reported is not None and reported.phase == TRAINING else {}
    if len(own) < 2:
        return ()
    slowest = max(own, key=lambda replica: own[replica])
    others = median(seconds for replica, seconds in own.items() if replica != slowest)
    held_up = builder.is_true(Condition.DEGRADED)
    lost = own[slowest] - others
    if lost < NOTICEABLE_SECONDS or lost < SLOWER * others * (RECOVERED if held_up else 1):
        _clear(builder, Condition.DEGRADED, "No worker holds up the others any more.")
        return ()
    text = (
        f"{ctx.observed.name(slowest)} needs {own[slowest]:.3g} s of its own for a step, the others {others:.3g} s: "
        f"with every step all wait {lost:.3g} s for it. {_why(ctx, slowest)}"
    )
    builder.set(Condition.DEGRADED, True, Reason.STRAGGLER, text)
    return () if held_up else (Event("Warning", str(Reason.STRAGGLER), text),)


def _own_seconds(ctx: ReconcileContext, reported: Report) -> dict[ReplicaId, float]:
    seconds = reported.worker_seconds or {}
    return {r: seconds[task] for r in ctx.members.required if (task := f"{r[0]}-{r[1]}") in seconds}


def _why(ctx: ReconcileContext, replica: ReplicaId) -> str:
    """Whether its input is the cause, by its report, and where to look."""
    reported, pod = _reports(ctx).get(replica), ctx.observed.pods.get(replica)
    node = f"node {pod.node}" if pod is not None and pod.node else "its node"
    share = reported.input_wait if reported is not None else None
    if share is None:
        return f"Look at the CPUs, GPUs, disk and network of {node}, and at what else runs there."
    if share >= INPUT_BOUND:
        return (
            f"It waits for its data for {share:.0%} of its time: look at the disk and network of {node}, or raise "
            "spec.trainer.data.parallelReads."
        )
    return f"It is not its data: look at the CPUs and GPUs of {node}, and at what else runs there."


def _reports(ctx: ReconcileContext) -> dict[ReplicaId, Report]:
    found = ((r, report_of(ctx.observed, ctx.snapshot.reports, r)) for r in ctx.members.required)
    return {replica: report for replica, report in found if report is not None}


def _clear(builder: StatusBuilder, condition: Condition, text: str) -> None:
    if builder.is_true(condition):
        builder.set(condition, False, Reason.PROGRESSING, text)
