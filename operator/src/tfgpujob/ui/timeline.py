"""The time of a job as a chart: a lane for the job's phases, and one for each of its pods. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from tfgpujob.core.observed.snapshot import Pod
from tfgpujob.describe.facts import Facts, moment
from tfgpujob.names import Phase
from tfgpujob.ui.charts import Bar
from tfgpujob.units import duration

MOST_PODS: Final = 16
_PHASES: Final[Mapping[str, Phase]] = {
    "Created": Phase.STARTING,
    **{
        str(phase): phase for phase in (Phase.RUNNING, Phase.RESTARTING, Phase.SUSPENDED, Phase.SUCCEEDED, Phase.FAILED)
    },
}
"""The phase that begins with a condition, or with an event of that reason."""
_ENDS: Final = frozenset({Phase.SUCCEEDED, Phase.FAILED})

_Span = tuple[datetime, datetime, str, str]
"""Start, end, kind and text."""


@dataclass(frozen=True, slots=True)
class Lane:
    name: str
    bars: Sequence[Bar]
    text: str
    """The same in words."""


@dataclass(frozen=True, slots=True)
class Picture:
    lanes: Sequence[Lane]
    begin: str
    end: str
    left_out: int
    """Pods that have no lane."""


def picture(facts: Facts) -> Picture | None:
    """None if there is only one phase."""
    phases = _phases(facts)
    if len(phases) < 2 and not facts.pods:
        return None
    spans = {"job": phases, **{f"{pod.role}-{pod.index}": list(_pod(pod, facts.now)) for pod in facts.pods[:MOST_PODS]}}
    if not any(spans.values()):
        return None
    begin = min(span[0] for lane in spans.values() for span in lane)
    end = max(span[1] for lane in spans.values() for span in lane)
    whole = max(1.0, (end - begin).total_seconds())
    lanes = [Lane(name, [_bar(span, begin, whole) for span in lane], _words(lane)) for name, lane in spans.items()]
    form = "%H:%M:%S" if begin.date() == end.date() else "%Y-%m-%d %H:%M"
    return Picture(lanes, begin.strftime(form), end.strftime(form), max(0, len(facts.pods) - MOST_PODS))


def _phases(facts: Facts) -> Sequence[_Span]:
    status = facts.status
    begin = moment(facts.job["metadata"].get("creationTimestamp")) or moment(status.get("startTime"))
    if begin is None:
        return []
    known = [(begin, Phase.PENDING)]
    told = [(event.get("reason"), event.get("firstTimestamp") or event.get("eventTime")) for event in facts.events]
    told += [(c["type"], c["lastTransitionTime"]) for c in status.get("conditions") or () if c["status"] == "True"]
    for what, when in told:
        phase, at = _PHASES.get(str(what)), moment(when)
        if phase is not None and at is not None and at >= begin:
            known.append((at, phase))
    known.sort(key=lambda one: (one[0], list(Phase).index(one[1])))
    ended = next((i for i, (_, phase) in enumerate(known) if phase in _ENDS), None)
    end = facts.now if ended is None else known[ended][0]
    begun = known if ended is None else known[:ended]
    following = [*(at for at, _ in begun[1:]), end]
    return [(at, to, phase.lower(), phase) for (at, phase), to in zip(begun, following, strict=True) if to > at]


def _pod(pod: Pod, now: datetime) -> Iterator[_Span]:
    created, began = moment(pod.created_at), moment(pod.program_began)
    ended = moment(pod.termination.finished_at if pod.termination is not None else pod.ended_at)
    if created is None:
        return
    end = max(created, ended or now)
    began = end if began is None and pod.termination is None else (began or created)
    if began > created:
        yield created, min(began, end), "pending", "waiting"
    if end > began:
        failed = pod.termination is not None and pod.termination.exit_code != 0
        yield began, end, "failed" if failed else "running", f"attempt {pod.attempt}{', failed' if failed else ''}"


def _bar(span: _Span, begin: datetime, whole: float) -> Bar:
    at, to, kind, text = span
    left, width = (at - begin).total_seconds(), (to - at).total_seconds()
    return Bar(round(100 * left / whole, 3), round(100 * width / whole, 3), kind, f"{text} {duration(width)}")


def _words(lane: Sequence[_Span]) -> str:
    return ", ".join(f"{text} {duration((to - at).total_seconds())}" for at, to, _, text in lane)
