"""The page of a job, as data: the text of describe first, then charts. Pure."""

from __future__ import annotations

import json
import shlex
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import yaml

from tfgpujob.core.observed.progress_series import Points, Series
from tfgpujob.core.observed.snapshot import Object
from tfgpujob.core.status import goodput_account
from tfgpujob.describe import find_verdict
from tfgpujob.describe.account import Part, parts, recovery_table
from tfgpujob.describe.facts import Facts, gather
from tfgpujob.describe.page import shown_why, state_of, summary
from tfgpujob.describe.progress_words import progress_of
from tfgpujob.describe.timeline import timeline
from tfgpujob.names import GONE, Condition, Phase
from tfgpujob.ui.charts import VALIDATION, Bar, Chart, line_chart, number_text, stacked
from tfgpujob.ui.seen import Seen
from tfgpujob.ui.timeline import Picture, picture
from tfgpujob.units import duration

_MAX_YAML: Final = 256 << 10
_MOST_WORKERS: Final = 32
_STRAGGLES: Final = 1.25
"""A worker whose step time is at least this multiple of the median is marked as slow."""
_KINDS: Final = {
    "useful": "useful",
    "input": "slowed",
    "allReduce": "slowed",
    "saving": "slowed",
    "evaluating": "slowed",
    "recomputing": "lost",
    "lost": "lost",
    "restarting": "lost",
    "backoff": "lost",
}
"""The kind of each part of the time; every other part is preparation."""
_OF_A_CLUSTER: Final = ("tfgpu ", "kubectl ", "The pods ")
"""In steps that do not help for a run on this machine."""
_SPEED: Final = {"stepSeconds": "Seconds of a step", "examplesPerSecond": "Examples a second"}


@dataclass(frozen=True, slots=True)
class Worker:
    name: str
    seconds: str
    bar: float
    """In percent of the slowest."""
    slow: bool


@dataclass(frozen=True, slots=True)
class Replica:
    name: str
    state: str
    node: str
    attempt: str
    lines: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPage:
    """What templates/job.html shows."""

    name: str
    namespace: str
    local: str
    tone: str
    """good, bad, waiting or plain."""
    state: str
    why: Sequence[str]
    steps: Sequence[str]
    live: bool
    facts: Sequence[tuple[str, str]]
    charts: Sequence[Chart]
    workers: Sequence[Worker]
    more_workers: int
    time: Sequence[Part]
    time_bar: Sequence[Bar]
    goodput: str
    recovery: str
    timeline: Picture | None
    events: Sequence[tuple[str, str]]
    replicas: Sequence[Replica]
    yaml: Sequence[str]
    commands: Sequence[tuple[str, str]]
    unknown: Sequence[str]


def job_page(seen: Seen, now: datetime) -> JobPage:
    """The page of a job at this time."""
    facts = gather(seen.job, seen.pods, seen.events, seen.nodes, now)
    verdict = find_verdict(facts)
    account = facts.status.get("goodput") or {}
    share = goodput_account.share(account) if account else None
    # On this machine a trainer reports what its time was spent on at its end; before that, all of it would be
    # unaccounted.
    ready = facts.status.get("ready")
    found, workers = [] if seen.local and share is None else parts(account), _workers(seen)
    return JobPage(
        name=facts.name,
        namespace=str(facts.job["metadata"].get("namespace", "default")),
        local=seen.local,
        tone=tone_of(facts),
        state=verdict.state if facts.gone or not ready else f"{verdict.state}, {ready} ready",
        why=shown_why(verdict),
        steps=[step for step in verdict.steps if not (seen.local and any(word in step for word in _OF_A_CLUSTER))],
        live=not facts.is_true(Condition.FINISHED) and not facts.gone,
        facts=[(label, text) for label, texts in summary(facts) for text in [" ".join(filter(None, texts))] if text],
        charts=charts_of(seen.series),
        workers=workers[:_MOST_WORKERS],
        more_workers=max(0, len(workers) - _MOST_WORKERS),
        time=found,
        time_bar=stacked([(p.share, kind_of(p.name), f"{p.name} {duration(p.seconds)}") for p in found]),
        goodput="" if share is None else f"{share:.1%}",
        recovery=recovery_table(facts.status.get("lastRecovery") or {}).removeprefix("Recovery").strip(),
        timeline=picture(facts),
        events=_events(facts),
        replicas=_replicas(seen, facts),
        yaml=_yaml(seen.job),
        commands=_commands(seen, facts),
        unknown=seen.unknown,
    )


def _events(facts: Facts) -> Sequence[tuple[str, str]]:
    """The newest first."""
    entries = timeline(facts)
    form = "%H:%M:%S" if len({at.date() for at, _ in entries}) == 1 else "%Y-%m-%d %H:%M:%S"
    return [(at.strftime(form), text) for at, text in reversed(entries)]


def tone_of(facts: Facts) -> str:
    """The tone of a job's state."""
    if facts.is_true(Condition.SUCCEEDED):
        return "good"
    refused = facts.condition(Condition.ACCEPTED).get("status") == "False"
    if refused or any(map(facts.is_true, (Condition.FAILED, Condition.QUARANTINED, Condition.STALLED))):
        return "bad"
    return "plain" if facts.is_true(Condition.RUNNING) else "waiting"


def kind_of(part: str) -> str:
    """The kind of a part of a job's time: useful, slowed, lost, or preparing."""
    return _KINDS.get(part, "preparing")


def charts_of(series: Series) -> Sequence[Chart]:
    """A chart for each metric, with its validation; the loss first, and speed last."""
    found = []
    for name in dict.fromkeys(name.removeprefix("val_") for name in in_order(series)):
        curves: dict[str, Points] = {"train": series.get(name, ()), VALIDATION: series.get(f"val_{name}", ())}
        found.append(line_chart(title_of(name), curves))
    return [chart for chart in found if chart is not None]


def in_order(series: Iterable[str]) -> Sequence[str]:
    """Names of curves: the loss first, each validation after its metric, and speed last."""

    def place(name: str) -> tuple[bool, bool, str, bool]:
        metric = name.removeprefix("val_")
        return name in _SPEED, metric != "loss", metric, name != metric

    return sorted(series, key=place)


def title_of(name: str) -> str:
    """The title of a chart."""
    return _SPEED.get(name, name)


def _workers(seen: Seen) -> Sequence[Worker]:
    """The slowest first."""
    seconds = (seen.report.worker_seconds if seen.report is not None else None) or {}
    if not seconds:
        return []
    most, middle = max(seconds.values()), statistics.median(seconds.values())
    ordered = sorted(seconds.items(), key=lambda one: -one[1])
    return [
        Worker(
            name, number_text(own), round(100 * own / (most or 1), 2), len(seconds) > 1 and own > _STRAGGLES * middle
        )
        for name, own in ordered
    ]


def _replicas(seen: Seen, facts: Facts) -> Sequence[Replica]:
    pods = {pod.name: pod for pod in facts.pods}
    names = dict.fromkeys([*pods, *seen.logs])
    return [
        Replica(
            name,
            state_of(pods[name], facts) if name in pods else "",
            pods[name].node or "no node" if name in pods else "",
            str(pods[name].attempt) if name in pods else "",
            [progress_of(line) or line for line in seen.logs.get(name, ())],
        )
        for name in names
    ]


def _yaml(job: Object) -> Sequence[str]:
    """The job as the cluster has it, without managedFields."""
    metadata = {key: value for key, value in job["metadata"].items() if key != "managedFields"}
    plain: dict[str, Any] = {**{key: value for key, value in job.items() if key != GONE}, "metadata": metadata}
    if len(json.dumps(plain, default=str)) > _MAX_YAML:
        return ["# too long to be shown here: tfgpu get NAME -o yaml"]
    return str(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=100)).splitlines()


def _commands(seen: Seen, facts: Facts) -> Sequence[tuple[str, str]]:
    name = shlex.quote(facts.name)
    if seen.local:
        where = f"{name} --dir {shlex.quote(seen.local)}"
        return [("Curves in a terminal", f"tfgpu plot {where}"), ("TensorBoard", f"tfgpu tensorboard {where}")]
    where = f"{name} -n {shlex.quote(str(facts.job['metadata'].get('namespace', 'default')))}"
    if facts.gone:
        return [("The same in a terminal", f"tfgpu describe {where}"), ("Jobs that were deleted", "tfgpu history")]
    known = [
        ("What is wrong", f"tfgpu describe {where}"),
        ("What its replicas print", f"tfgpu logs {where} -f"),
        ("What its replicas use", f"tfgpu top {where}"),
        ("Curves in a terminal", f"tfgpu plot {where}"),
        ("TensorBoard", f"tfgpu tensorboard {where}"),
    ]
    if facts.is_true(Condition.FINISHED):
        return [*known, ("Start it again", f"tfgpu restart {where}")]
    if (facts.spec.get("runPolicy") or {}).get("suspend") or facts.status.get("phase") == Phase.SUSPENDED:
        return [*known, ("Resume it", f"tfgpu resume {where}")]
    return [*known, ("Stop it at a checkpoint", f"tfgpu suspend {where}")]
