"""The page: the verdict first, then the facts behind it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from tfgpujob.core.observed.snapshot import Object, Pod
from tfgpujob.core.status import gpu_time
from tfgpujob.describe.account import goodput_table, lost_time, recovery_table
from tfgpujob.describe.facts import Facts, gather
from tfgpujob.describe.timeline import timeline
from tfgpujob.describe.verdict import Verdict, find_verdict
from tfgpujob.names import Phase
from tfgpujob.units import counted, duration, hours

WIDTH = 110
_MAX_LINES = 8
"""Lines of a failure's message: the first screen must also have room for the fix."""
_LABEL = 12


def describe(
    job: Object, pods: Sequence[Object], events: Sequence[Object], nodes: Sequence[Object] | None, now: datetime
) -> str:
    """`pods` and `events` are those of the job's namespace; `nodes` None if the user may not list them."""
    facts = gather(job, pods, events, nodes, now)
    sections = (
        "\n".join(_verdict(facts)),
        "\n".join(line for label, texts in summary(facts) for line in _labelled(label, texts)),
        _pods(facts),
        _conditions(facts),
        goodput_table(facts.status.get("goodput") or {}),
        recovery_table(facts.status.get("lastRecovery") or {}),
        _past(facts),
    )
    return "\n\n".join(section for section in sections if section)


def _verdict(facts: Facts) -> Iterator[str]:
    verdict = find_verdict(facts)
    metadata = facts.job["metadata"]
    ready = f", {facts.status['ready']} ready" if facts.status.get("ready") and not facts.gone else ""
    yield f"{metadata.get('namespace', 'default')}/{facts.name}: {verdict.state}{ready}"
    yield from _labelled("Why", [piece for line in shown_why(verdict) for piece in _wrapped(line)])
    yield from _labelled("Next", [piece for step in verdict.steps for piece in _wrapped(step)])


def shown_why(verdict: Verdict) -> Sequence[str]:
    """The cause, with the trainer's sentence and the last lines of the log if it is long."""
    lines = verdict.why.splitlines()
    return lines if len(lines) <= _MAX_LINES else [*lines[:2], "…", *lines[3 - _MAX_LINES :]]


def summary(facts: Facts) -> Iterator[tuple[str, Sequence[str]]]:
    """The fields of every job, by label; an empty text is unknown."""
    status, spec = facts.status, facts.spec
    plan = status.get("plan") or {}
    replicas = [f"{role} × {count}" for role, count in (plan.get("counts") or {}).items()]
    replicas += [f"spare × {plan['spares']}"] if plan.get("spares") else []
    parts = (str(spec.get("strategy", "")), ", ".join(replicas))
    yield "Strategy", [": ".join(part for part in parts if part)]
    spent = [f"attempt {status.get('attempt', 0)}"]
    limit = (spec.get("runPolicy") or {}).get("backoffLimit", 6)
    in_place = f" ({status['inPlaceRestarts']} in place)" if status.get("inPlaceRestarts") else ""
    spent.append(f"{status.get('restarts', 0)} of {limit} restarts spent{in_place}")
    if status.get("disruptions"):
        spent.append(f"{counted(status['disruptions'], 'disruption')}, which spent none")
    yield "Attempts", [", ".join(spent)]
    yield "Losses", [lost_time(status)]
    if "gpuTime" in status:
        yield "GPU-hours", [f"{hours(gpu_time.seconds(status, facts.now))}, all attempts together"]
    yield "Progress", [progress_line(status.get("progress") or {})]
    images = (_digests(part, found) for part, found in (status.get("digests") or {}).items())
    yield "Images", [piece for line in images for piece in _wrapped(line)]
    checkpoint = status.get("lastCheckpoint") or {}
    if checkpoint and status.get("phase") != Phase.SUCCEEDED:  # the last of a finished run is not asked for
        took = f", saved in {checkpoint['seconds']} s" if "seconds" in checkpoint else ""
        text = f"step {checkpoint.get('step', '?')} in {checkpoint.get('directory', '?')}{took}"
        yield "Checkpoint", [text]
    retry = (status.get("retry") or {}).get("notBefore")
    yield "Next try", [f"not before {retry}" if retry else ""]


def _digests(part: str, found: Sequence[str]) -> str:
    moved = ": the tag was moved, and the pods of one attempt have different images" if len(found) > 1 else ""
    return f"{part} from {' and '.join(found)}{moved}"


def progress_line(progress: Any) -> str:
    """status.progress in one line; empty when nothing was reported."""
    parts = []
    if progress.get("waitsFor"):
        parts.append(f"waits for {', '.join(progress['waitsFor'])} to start")
    if progress.get("epoch") is not None:
        parts.append(f"epoch {_of(progress, 'epoch', 'totalEpochs')}")
    if progress.get("step") is not None:
        share = f" ({progress['percent']} %)" if progress.get("percent") is not None else ""
        parts.append(f"step {_of(progress, 'step', 'totalSteps')}{share}")
    if progress.get("loss") is not None:
        parts.append(f"loss {progress['loss']}")
    if progress.get("examplesPerSecond") is not None:
        parts.append(f"{progress['examplesPerSecond']} examples/s")
    if progress.get("remainingSeconds") is not None:
        parts.append(f"about {duration(progress['remainingSeconds'])} left")
    if uses := progress.get("gpuUsePercent"):
        parts.append(f"GPU use {', '.join(f'{use} %' for use in uses)}")
    return ", ".join(parts)


def _of(progress: Any, done: str, total: str) -> str:
    whole = progress.get(total)
    return f"{progress[done]}/{whole}" if whole is not None else str(progress[done])


def _pods(facts: Facts) -> str:
    if not facts.pods:
        return "Pods        none"
    rows = [(pod.name, state_of(pod, facts), pod.node or "no node", f"attempt {pod.attempt}") for pod in facts.pods]
    return "\n".join(["Pods", *_columns(rows)])


def state_of(pod: Pod, facts: Facts) -> str:
    """What a pod does, or how it ended."""
    if pod.termination is not None:
        return f"ended with {pod.termination.exit_code} {pod.termination.reason}".rstrip()
    if pod.deleting:
        return "stopping"
    if pod.node in facts.lost_nodes():
        return "on a lost node"
    if pod.waiting_reason:
        return pod.waiting_reason
    if pod.status_reason:
        return pod.status_reason
    return "ready" if pod.ready else pod.phase


def _conditions(facts: Facts) -> str:
    found = facts.status.get("conditions") or ()
    rows = [(c["type"], c["status"], c["reason"], _ago(facts, c["lastTransitionTime"])) for c in found]
    return "\n".join(["Conditions", *_columns(rows)]) if rows else ""


def _past(facts: Facts) -> str:
    entries = timeline(facts)
    # A job may run for a week, so the time needs a date.
    form = "%H:%M:%S" if all(at.date() == facts.now.date() for at, _ in entries) else "%Y-%m-%d %H:%M:%S"
    room = WIDTH - _LABEL - len(facts.now.strftime(form)) + len("HH:MM:SS")
    lines = [f"  {at.strftime(form)}  {textwrap.shorten(text, room, placeholder=' …')}" for at, text in entries]
    return "\n".join(["Timeline (UTC)", *lines])


def _ago(facts: Facts, when: str) -> str:
    return f"for {duration((facts.now - datetime.fromisoformat(when)).total_seconds())}"


def _columns(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return [
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def _labelled(label: str, lines: Sequence[str]) -> Iterator[str]:
    shown = [line for line in lines if line]
    for i, line in enumerate(shown):
        yield f"{label if i == 0 else '':<{_LABEL}}{line}"


def _wrapped(line: str) -> list[str]:
    return textwrap.wrap(line, WIDTH - _LABEL, break_long_words=False, break_on_hyphens=False) or [""]
