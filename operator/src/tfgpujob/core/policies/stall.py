"""A job that runs and does not get on, or is held up by one of its workers.

Stalled     no step, evaluation batch or save was done for spec.runPolicy.stallSeconds, as the reporter itself says
Degraded    one worker of a synchronous job needs longer for its steps, and the others wait for it

Both need a fresh word of the training process: silence is no stall. Neither has a clock here, so an operator that was
away says the same as one that was not.
"""

from __future__ import annotations

from statistics import median

from tfgpujob.api import JobSpec
from tfgpujob.core.observed.plan import ReplicaId
from tfgpujob.core.observed.progress_report import Report
from tfgpujob.core.observed.snapshot import Event
from tfgpujob.core.policies.context import Case
from tfgpujob.core.status.builder import Draft
from tfgpujob.core.status.progress import STALLS, report_of, reporter
from tfgpujob.names import Condition, Reason

SLOWER = 0.5
"""A straggler needs this much more time for a step than the others do, of theirs."""
NOTICEABLE_SECONDS = 0.02
"""And at least so much more: the shortest steps differ by chance."""
RECOVERED = 0.5
"""A straggler is none any more when what it needs more has fallen to this part."""
MUCH = 0.3
"""Share of a worker's time that is worth a word when it goes into waiting for data."""


def note(case: Case) -> tuple[Event, ...]:
    """Brings both conditions up to date with the reports; gives the events of what is new."""
    told = report_of(case.view, case.snapshot.reports, reporter(case.view))
    if told is None:
        return ()
    stalled = _note_stall(case, told)
    slow = () if case.draft.is_true(Condition.STALLED) else _note_straggler(case)
    return (*stalled, *slow)


def limit(spec: JobSpec) -> int:
    """Seconds without a step, an evaluation batch or a save that are a stall."""
    if spec.run_policy.stall_seconds is not None:
        return spec.run_policy.stall_seconds
    return spec.trainer.watchdog.step_seconds // 2 if spec.trainer is not None else 0


def _note_stall(case: Case, told: Report) -> tuple[Event, ...]:
    draft, seconds = case.draft, limit(case.spec)
    if told.phase not in STALLS or told.idle_seconds < seconds:
        _over(draft, Condition.STALLED, "The training gets on again.")
        return ()
    replica = blocking_replica(case)
    whose = f" {case.view.name(replica)} holds up the others." if replica is not None else ""
    new = not draft.is_true(Condition.STALLED)
    text = f"While {told.phase} after step {told.step or 0}, nothing was done for more than {seconds} s.{whose}"
    draft.set(Condition.STALLED, True, Reason.NO_PROGRESS, text)
    return (Event("Warning", str(Condition.STALLED), text),) if new else ()


def blocking_replica(case: Case) -> ReplicaId | None:
    """Of trainers that stand still, the one that the others wait for: it is behind, or does not wait itself."""
    stuck = {r: t for r, t in _told(case).items() if 2 * t.idle_seconds >= limit(case.spec)}
    if len(stuck) < 2:
        return None
    first = max(t.step or 0 for t in stuck.values())
    behind = [r for r, t in stuck.items() if (t.step or 0) < first]
    behind = behind or [r for r, t in stuck.items() if not t.waits_for_peers]
    return min(behind) if 0 < len(behind) < len(stuck) else None


def _note_straggler(case: Case) -> tuple[Event, ...]:
    draft, told = case.draft, report_of(case.view, case.snapshot.reports, reporter(case.view))
    own = _own_seconds(case, told) if told is not None and told.phase == "training" else {}
    if len(own) < 2:
        return ()
    slowest = max(own, key=lambda replica: own[replica])
    others = median(seconds for replica, seconds in own.items() if replica != slowest)
    held_up = draft.is_true(Condition.DEGRADED)
    lost = own[slowest] - others
    if lost < NOTICEABLE_SECONDS or lost < SLOWER * others * (RECOVERED if held_up else 1):
        _over(draft, Condition.DEGRADED, "No worker holds up the others any more.")
        return ()
    text = (
        f"{case.view.name(slowest)} needs {own[slowest]:.3g} s of its own for a step, the others {others:.3g} s: with "
        f"every step all wait {lost:.3g} s for it. {_why(case, slowest)}"
    )
    draft.set(Condition.DEGRADED, True, Reason.STRAGGLER, text)
    return () if held_up else (Event("Warning", str(Reason.STRAGGLER), text),)


def _own_seconds(case: Case, told: Report) -> dict[ReplicaId, float]:
    seconds = told.worker_seconds or {}
    return {r: seconds[task] for r in case.plan.required() if (task := f"{r[0]}-{r[1]}") in seconds}


def _why(case: Case, replica: ReplicaId) -> str:
    """What it does with the time, as far as it has told, and where to look."""
    told, pod = _told(case).get(replica), case.view.pods.get(replica)
    node = f"node {pod.node}" if pod is not None and pod.node else "its node"
    share = told.input_wait if told is not None else None
    if share is None:
        return f"Look at the CPUs, GPUs, disk and network of {node}, and at what else runs there."
    if share >= MUCH:
        return (
            f"It waits for its data for {share:.0%} of its time: look at the disk and network of {node}, or raise "
            "spec.trainer.data.parallelReads."
        )
    return f"It is not its data: look at the CPUs and GPUs of {node}, and at what else runs there."


def _told(case: Case) -> dict[ReplicaId, Report]:
    found = ((r, report_of(case.view, case.snapshot.reports, r)) for r in case.plan.required())
    return {replica: report for replica, report in found if report is not None}


def _over(draft: Draft, condition: Condition, text: str) -> None:
    if draft.is_true(condition):
        draft.set(condition, False, Reason.PROGRESSING, text)
