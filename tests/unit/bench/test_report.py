"""tests/bench/report.py: what a run of the benchmark is judged by, and what it only shows."""

from __future__ import annotations

import json

from tests.bench import report
from tests.bench.measure import DIRECT, KUBE, OPERATOR, PODS, WIDE, Figures


def figures(among: float, direct_among: float) -> Figures:
    """All bounds hold but, as it may be, those of a new job among many; alone it takes 1 s, whoever creates it."""
    who = (OPERATOR, DIRECT, KUBE)
    return Figures(
        rates={one: [100.0] for one in who},
        times={(one, pods): [0.01] for one in who for pods in (PODS, WIDE)},
        cpu_to_pods=[3.0],
        cpu_whole_life=[8.0],
        writes=[10.0],
        alone=[1.0],
        among_many=[among],
        direct_alone=[1.0],
        direct_among_many=[direct_among],
        idle_writes=0,
        restart_writes=0,
    )


def said(among: float, direct_among: float) -> tuple[bool, list[str]]:
    values = report.summary(figures(among, direct_among))
    line = json.loads(report.line(values))
    assert line["ok"] == report.holds(values)
    return line["ok"], line["missed"]


def test_what_the_api_server_takes_longer_for_is_shown_and_not_judged() -> None:
    assert said(1.1, 1.0) == (True, [])
    assert said(1.8, 2.1) == (True, ["new_job_among_1k_vs_empty"])
    assert "≤ 1.2  missed, not judged" in report.table(report.summary(figures(1.8, 2.1)))


def test_what_the_operator_adds_is_judged() -> None:
    assert said(1.8, 1.4) == (False, ["new_job_among_1k_vs_empty", "new_job_among_1k_beyond_direct"])


def test_a_direct_client_that_was_faster_by_chance_counts_for_nothing() -> None:
    assert said(1.1, 0.8) == (True, [])
