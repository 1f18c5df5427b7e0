"""What a run has shown: bounds, a table for people, a line of JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from tests.bench.figures import BASE, DIRECT, KUBE, OPERATOR, PODS, WIDE, Figures, Size, Turn
from tests.bench.rounds import Diary

WRITES = PODS + 1 + 3 + 2
"""Pods, service, status writes, events."""
NAME_WIDTH = 36


@dataclass(frozen=True, slots=True)
class Figure:
    value: float | None
    """None: it could not be measured."""
    rounds: int
    """Undisturbed ones, on which it rests."""
    wanted: int
    """0 if this cluster has no readable audit log."""

    @property
    def can_be_judged(self) -> bool:
        """One or two rounds of many are what is left of a storm, and no figure to judge by."""
        return 2 * self.rounds >= self.wanted


Summary = dict[str, Figure]


@dataclass(frozen=True, slots=True)
class Bound:
    name: str
    least: float | None = None
    most: float | None = None
    judged: bool = True
    """Whether a run is ok only if it holds. The API server alone can miss the others: they are shown."""

    def holds(self, figure: Figure) -> bool:
        """What could not be measured misses no bound, but if it was disturbed the run is not ok."""
        value = figure.value
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
    Bound("operators_ended", most=0),
    # Five rounds can't distinguish a smaller difference from chance.
    Bound("jobs_per_s_vs_base", least=0.95),
    Bound("cpu_ms_per_job_whole_life_vs_base", most=1.05),
    Bound("apply_to_32_pods_vs_base", most=1.1),
)


def summary(figures: Figures, size: Size) -> Summary:
    """Rates in jobs a second, times in ms or s as the name says, ratios without unit.

    A ratio is the median of the rounds' ratios: in a round the machine was the same for all.
    """
    rounds, latencies = size.rounds, size.latencies
    rates, costs = [one.rates for one in figures.throughput], [one.cost for one in figures.throughput]
    alone, among = figures.alone, figures.among_many
    costs_by_base = [one.cost.cpu_whole_life / one.base.cpu_whole_life for one in figures.throughput if one.base]
    return {
        "jobs_per_s": _median(_of(rates, OPERATOR), rounds),
        "jobs_per_s_direct": _median(_of(rates, DIRECT), rounds),
        "jobs_per_s_kube_job": _median(_of(rates, KUBE), rounds),
        "jobs_per_s_vs_kube_job": _median(_ratios(rates, KUBE), rounds),
        "jobs_per_s_vs_direct": _median(_ratios(rates, DIRECT), rounds),
        "cpu_ms_per_job": _median([one.cpu_to_pods for one in costs], rounds),
        "cpu_ms_per_job_whole_life": _median([one.cpu_whole_life for one in costs], rounds),
        "writes_per_job": _most([one.writes for one in costs], rounds),
        **{
            f"apply_to_{pods}_pods_ms{suffix}": _median(_of(figures.times.get(pods, ()), who), latencies, 1000)
            for pods in (PODS, WIDE)
            for who, suffix in ((OPERATOR, ""), (DIRECT, "_direct"), (KUBE, "_kube_job"))
        },
        "apply_to_32_pods_vs_direct": _median(_ratios(figures.times.get(WIDE, ()), DIRECT), latencies),
        "rss_mb_idle": _median(figures.rss_idle, 1),
        "rss_mb_1k_4k": _median(figures.rss_many, 1),
        "cold_start_s_1k": _median([seconds for seconds, _ in figures.restarts], 1),
        "new_job_among_1k_ms": _median(_of(among, OPERATOR), latencies, 1000),
        "new_job_among_1k_vs_empty": _slowdown(alone, among, latencies, lambda operator, _: operator),
        "direct_among_1k_vs_empty": _slowdown(alone, among, latencies, lambda _, direct: direct),
        # A direct client that was faster by chance must not count against the operator.
        "new_job_among_1k_beyond_direct": _slowdown(
            alone, among, latencies, lambda operator, direct: operator / max(1.0, direct)
        ),
        "idle_writes_other_than_lease": _most(figures.idle_writes, 1),
        "restart_writes_other_than_lease": _most([writes for _, writes in figures.restarts], 1),
        "operators_ended": Figure(len(figures.operators_ended), 1, 1),
        **(
            {
                "jobs_per_s_vs_base": _median(_ratios(rates, BASE), rounds),
                "cpu_ms_per_job_whole_life_vs_base": _median(costs_by_base, rounds),
                **{
                    f"apply_to_{pods}_pods_vs_base": _median(_ratios(figures.times.get(pods, ()), BASE), latencies)
                    for pods in (PODS, WIDE)
                },
            }
            if rates and BASE in rates[0]
            else {}
        ),
    }


def table(values: Summary, diary: Diary) -> str:
    bounds = {bound.name: bound for bound in BOUNDS}
    lines = [f"{'figure':{NAME_WIDTH}}{'value':>10}  {'rounds':>8}  bound"]
    for name, figure in values.items():
        value = "-" if figure.value is None else f"{figure.value:.2f}"
        rounds = f"{figure.rounds} of {figure.wanted}" if figure.wanted else "-"
        lines.append(f"{name:{NAME_WIDTH}}{value:>10}  {rounds:>8}  {_verdict(bounds.get(name), figure)}".rstrip())
    noise = [one for rounds in diary.noise.values() for one in rounds]
    if noise:
        loads, steals = [one.load for one in noise], [one.steal for one in noise]
        lines.append(f"{'load average':{NAME_WIDTH}}{f'{min(loads):.1f} to {max(loads):.1f}':>10}")
        lines.append(f"{'CPU time stolen, %':{NAME_WIDTH}}{f'{min(steals):.0f} to {max(steals):.0f}':>10}")
    return "\n".join([*lines, *(f"disturbed: {entry}" for entry in diary.disturbed)])


def _verdict(bound: Bound | None, figure: Figure) -> str:
    if bound is None:
        return ""
    if not bound.holds(figure):
        return f"{bound.text()}  MISSED" if bound.judged else f"{bound.text()}  missed, not judged"
    return bound.text() if figure.can_be_judged else f"{bound.text()}  NOT JUDGED: too few undisturbed rounds"


def holds(values: Summary) -> bool:
    """Every bound that is judged holds, and none of them rests on too little."""
    return not unjudged(values) and all(bound.holds(values[bound.name]) for bound in _bounds(values) if bound.judged)


def _bounds(values: Summary) -> list[Bound]:
    """Those of what was measured: without a base nothing is compared with it."""
    return [bound for bound in BOUNDS if bound.name in values]


def unjudged(values: Summary) -> list[str]:
    return [bound.name for bound in _bounds(values) if bound.judged and not values[bound.name].can_be_judged]


def line(values: Summary, diary: Diary, **more: object) -> str:
    return json.dumps(
        {
            "name": "bench-operator",
            "ok": holds(values),
            "missed": [bound.name for bound in _bounds(values) if not bound.holds(values[bound.name])],
            "not_judged": unjudged(values),
            "disturbed": diary.disturbed,
            **{name: None if one.value is None else round(one.value, 3) for name, one in values.items()},
            "rounds": {name: one.rounds for name, one in values.items()},
            "load": {what: [round(one.load, 1) for one in rounds] for what, rounds in diary.noise.items()},
            "steal_percent": {what: [round(one.steal, 1) for one in rounds] for what, rounds in diary.noise.items()},
            **more,
        }
    )


def _of(turns: Sequence[Turn], who: str) -> list[float]:
    return [turn[who] for turn in turns]


def _ratios(turns: Sequence[Turn], other: str) -> list[float]:
    return [turn[OPERATOR] / turn[other] for turn in turns]


def _median(found: Sequence[float], wanted: int, factor: float = 1) -> Figure:
    return Figure(factor * median(found) if found else None, len(found), wanted)


def _most(found: Sequence[float | None], wanted: int) -> Figure:
    """None without an audit log."""
    told = [one for one in found if one is not None]
    return Figure(max(told, default=None), len(told), wanted if told or not found else 0)


def _slowdown(
    alone: Sequence[Turn], among: Sequence[Turn], wanted: int, figure: Callable[[float, float], float]
) -> Figure:
    """How many times as long a new job takes among many; `figure` is given the operator's and the direct client's."""
    rounds = min(len(alone) // 2, len(among))
    if not alone or not among:
        return Figure(None, rounds, wanted)
    operator, direct = (median(_of(among, who)) / median(_of(alone, who)) for who in (OPERATOR, DIRECT))
    return Figure(figure(operator, direct), rounds, wanted)
