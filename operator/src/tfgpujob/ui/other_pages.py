"""The list of jobs and the comparison of several, as data. Pure."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from tfgpujob.client.job import Job
from tfgpujob.core.observed.snapshot import Object
from tfgpujob.describe import find_verdict
from tfgpujob.describe.facts import gather, moment
from tfgpujob.describe.page import progress_line
from tfgpujob.names import GONE, Phase
from tfgpujob.ui.charts import Chart, line_chart, number_text
from tfgpujob.ui.job_page import in_order, title_of, tone_of
from tfgpujob.ui.seen import Seen, cut
from tfgpujob.units import counted, duration, hours

MOST_ROWS: Final = 100
MOST_COMPARED: Final = 8
_MOST_PARAMETERS: Final = 300
_MOST_WHY: Final = 180


@dataclass(frozen=True, slots=True)
class Filter:
    """Empty: any."""

    namespace: str = ""
    phase: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    key: str
    namespace: str
    name: str
    tone: str
    state: str
    why: str
    progress: str
    gpus: str
    age: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ListPage:
    """What templates/list.html shows."""

    filter: Filter
    namespaces: Sequence[str]
    phases: Sequence[str]
    rows: Sequence[Row]
    following: int
    """Jobs before the first older one."""
    older: int
    sums: Sequence[tuple[str, str]]
    unknown: Sequence[str]
    live: bool = True


def list_page(
    jobs: Mapping[str, Object], wanted: Filter, unknown: Sequence[str], now: datetime, first: int = 0
) -> ListPage:
    """`jobs` by their key in a URL. `first`: how many newer ones are left out."""
    found = {key: Job(job) for key, job in jobs.items() if _is_wanted(job, wanted)}
    ordered = sorted(found.items(), key=lambda one: _created(one[1].raw) or "", reverse=True)
    end = first + MOST_ROWS
    return ListPage(
        filter=wanted,
        namespaces=sorted({str(job["metadata"].get("namespace", "")) for job in jobs.values()}),
        phases=list(Phase),
        rows=[_row(key, job, now) for key, job in ordered[first:end]],
        following=end,
        older=max(0, len(ordered) - end),
        sums=_sums([*found.values()]),
        unknown=unknown,
    )


def _is_wanted(job: Object, wanted: Filter) -> bool:
    metadata = job["metadata"]
    by_namespace = wanted.namespace in {"", metadata.get("namespace")}
    by_phase = wanted.phase in {"", _phase(job)}
    return by_namespace and by_phase and wanted.text.lower() in str(metadata["name"]).lower()


def _row(key: str, job: Job, now: datetime) -> Row:
    facts = gather(job.raw, (), (), None, now)
    verdict = find_verdict(facts)
    created = moment(_created(job.raw))
    return Row(
        key=key,
        namespace=str(job.raw["metadata"].get("namespace", "")),
        name=facts.name,
        tone=tone_of(facts),
        state=verdict.state,
        why=_shortened(verdict.why.partition("\n")[0]),
        progress=progress_line(facts.status.get("progress") or {}),
        gpus="–" if (gpus := job.gpus) is None else str(gpus),
        age="–" if created is None else duration((now - created).total_seconds()),
    )


def _shortened(text: str) -> str:
    return text if len(text) <= _MOST_WHY else textwrap.shorten(cut(text), _MOST_WHY, placeholder=" …")


def _phase(job: Object) -> str:
    return str((job.get("status") or {}).get("phase") or Phase.PENDING)


def _created(job: Object) -> str | None:
    found: str | None = job["metadata"].get("creationTimestamp") or (job.get("status") or {}).get("startTime")
    return found


def _sums(jobs: Sequence[Job]) -> Sequence[tuple[str, str]]:
    """Running and waiting jobs, with their GPUs."""
    unfinished = [job for job in jobs if GONE not in job.raw and not job.finished]
    running = [job for job in unfinished if _phase(job.raw) == Phase.RUNNING]
    waiting = [job for job in unfinished if _phase(job.raw) != Phase.RUNNING]
    return [
        ("running", _sum(running)),
        ("waiting", _sum(waiting)),
        ("finished", counted(len(jobs) - len(unfinished), "job")),
    ]


def _sum(jobs: Sequence[Job]) -> str:
    return f"{counted(len(jobs), 'job')}, {counted(sum(job.gpus or 0 for job in jobs), 'GPU')}"


@dataclass(frozen=True, slots=True)
class Parameter:
    name: str
    values: Sequence[str]
    differs: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparePage:
    """What templates/compare.html shows."""

    runs: Sequence[tuple[str, str]]
    """Key in a URL, and name."""
    charts: Sequence[Chart]
    parameters: Sequence[Parameter]
    left_out: int
    unknown: Sequence[str]


def compare_page(runs: Mapping[str, Seen], now: datetime) -> ComparePage:
    """`runs` by their key in a URL."""
    seen = list(runs.values())
    labels = [f"{number}. {one.job['metadata']['name']}" for number, one in enumerate(seen, 1)]
    names = in_order({name for one in seen for name in one.series})
    charts = [
        line_chart(title_of(name), {label: one.series.get(name, ()) for label, one in zip(labels, seen, strict=True)})
        for name in names
    ]
    columns = [{**_outcome(one, now), **dict(_flat("", _parameters(one.job)))} for one in seen]
    parameters = [_parameter(name, columns) for name in dict.fromkeys(name for column in columns for name in column)]
    # Differing parameters first, and among these the outcome.
    parameters.sort(key=lambda parameter: not parameter.differs)
    return ComparePage(
        runs=list(zip(runs, labels, strict=True)),
        charts=[chart for chart in charts if chart is not None],
        parameters=parameters[:_MOST_PARAMETERS],
        left_out=max(0, len(parameters) - _MOST_PARAMETERS),
        unknown=[line for one in seen for line in one.unknown],
    )


def _parameter(name: str, columns: Sequence[Mapping[str, str]]) -> Parameter:
    values = [column.get(name, "–") for column in columns]
    return Parameter(name, values, len({*values}) > 1)


def _outcome(seen: Seen, now: datetime) -> Mapping[str, str]:
    job = Job(seen.job)
    metrics = [name for name in in_order(seen.series) if title_of(name) == name]
    ends = {f"last {name}": number_text(seen.series[name][-1][1]) for name in metrics if seen.series[name]}
    return {"phase": _phase(seen.job), "GPU-hours": hours(job.gpu_seconds(now)), **ends}


def _parameters(job: Object) -> Mapping[str, Any]:
    spec = job.get("spec") or {}
    worker = ((spec.get("replicaSpecs") or {}).get("worker") or {}).get("replicas")
    plain = {key: spec[key] for key in ("strategy", "image", "gpu", "trainer") if key in spec}
    return plain if worker is None else {**plain, "workers": worker}


def _flat(path: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _flat(f"{path}.{key}" if path else str(key), inner)
    else:
        yield path, cut(value if isinstance(value, str) else json.dumps(value, default=str), 200)
