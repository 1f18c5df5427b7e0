"""What a run has shown: bounds, a table for people, a line of JSON for programs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from statistics import median

from tests.bench.measure import DIRECT, KUBE, OPERATOR, PODS, WIDE, Figures

WRITES = PODS + 1 + 3 + 2
"""Pods, service, status writes, events."""


@dataclass(frozen=True, slots=True)
class Bound:
    name: str
    least: float | None = None
    most: float | None = None
    judged: bool = True
    """Whether a run is ok only if it holds. The API server alone can miss the others: they are shown."""

    def holds(self, value: float | None) -> bool:
        """What could not be measured breaks no bound; it is null in the JSON."""
        if value is None:
            return True
        return (self.least is None or value >= self.least) and (self.most is None or value <= self.most)

    def text(self) -> str:
        return f"≥ {self.least:g}" if self.least is not None else f"≤ {self.most:g}"


BOUNDS = (
    Bound("jobs_per_s_vs_kube_job", least=0.5),
    Bound("jobs_per_s_vs_direct", least=0.7),
    Bound("cpu_ms_per_job", most=4),
    Bound("writes_per_job", most=WRITES),
    Bound("apply_to_32_pods_vs_direct", most=1.5),
    Bound("rss_mb_1k_4k", most=120),
    Bound("new_job_among_1k_vs_empty", most=1.2, judged=False),
    Bound("new_job_among_1k_beyond_direct", most=1.2),
    Bound("idle_writes_other_than_lease", most=0),
    Bound("restart_writes_other_than_lease", most=0),
)


def summary(figures: Figures) -> dict[str, float | None]:
    """Rates in jobs a second, times in ms or s as the name says, ratios without unit."""
    alone, among = median(figures.alone), median(figures.among_many)
    direct_alone, direct_among = median(figures.direct_alone), median(figures.direct_among_many)
    return {
        "jobs_per_s": figures.rate(OPERATOR),
        "jobs_per_s_direct": figures.rate(DIRECT),
        "jobs_per_s_kube_job": figures.rate(KUBE),
        "jobs_per_s_vs_kube_job": figures.rate(OPERATOR) / figures.rate(KUBE),
        "jobs_per_s_vs_direct": figures.rate(OPERATOR) / figures.rate(DIRECT),
        "cpu_ms_per_job": median(figures.cpu_to_pods),
        "cpu_ms_per_job_whole_life": median(figures.cpu_whole_life),
        "writes_per_job": max(figures.writes, default=None),
        **{
            f"apply_to_{pods}_pods_ms{suffix}": 1000 * figures.time(who, pods)
            for pods in (PODS, WIDE)
            for who, suffix in ((OPERATOR, ""), (DIRECT, "_direct"), (KUBE, "_kube_job"))
        },
        "apply_to_32_pods_vs_direct": figures.time(OPERATOR, WIDE) / figures.time(DIRECT, WIDE),
        "rss_mb_idle": figures.rss_idle,
        "rss_mb_1k_4k": figures.rss_many,
        "cold_start_s_1k": figures.cold_start,
        "new_job_among_1k_ms": 1000 * among,
        "new_job_among_1k_vs_empty": among / alone,
        "direct_among_1k_vs_empty": direct_among / direct_alone,
        # A direct client that was faster by chance must not count against the operator.
        "new_job_among_1k_beyond_direct": among / alone / max(1.0, direct_among / direct_alone),
        "idle_writes_other_than_lease": figures.idle_writes,
        "restart_writes_other_than_lease": figures.restart_writes,
    }


def table(values: dict[str, float | None]) -> str:
    bounds = {bound.name: bound for bound in BOUNDS}
    lines = [f"{'figure':36}{'value':>10}  bound"]
    for name, value in values.items():
        bound = bounds.get(name)
        lines.append(f"{name:36}{'-' if value is None else f'{value:.2f}':>10}  {_verdict(bound, value)}".rstrip())
    return "\n".join(lines)


def _verdict(bound: Bound | None, value: float | None) -> str:
    if bound is None or bound.holds(value):
        return "" if bound is None else bound.text()
    return f"{bound.text()}  MISSED" if bound.judged else f"{bound.text()}  missed, not judged"


def holds(values: dict[str, float | None]) -> bool:
    return all(bound.holds(values[bound.name]) for bound in BOUNDS if bound.judged)


def line(values: dict[str, float | None], **more: object) -> str:
    rounded = {name: None if value is None else round(value, 3) for name, value in values.items()}
    missed = [bound.name for bound in BOUNDS if not bound.holds(values[bound.name])]
    return json.dumps({"name": "bench-operator", "ok": holds(values), "missed": missed, **rounded, **more})
