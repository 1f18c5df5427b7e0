"""tests/bench/report.py: what a run of the benchmark is judged by, what it only shows, and what it can't measure."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from tests.bench import report
from tests.bench.figures import BASE, DIRECT, KUBE, OPERATOR, PODS, QUICK, WIDE, Cost, Figures, Throughput
from tests.bench.rounds import Diary

SIZE = replace(QUICK, rounds=3, latencies=2)


def turn(operator: float = 1.0, others: float = 1.0) -> dict[str, float]:
    return {OPERATOR: operator, DIRECT: others, KUBE: others}


def figures(among: float = 1.0, direct_among: float = 1.0, **more: Any) -> Figures:
    """All bounds are met except, optionally, those of a new job among many; alone it takes 1 s in either way."""
    every = {
        "throughput": [Throughput(turn(100.0, 100.0), Cost(3.0, 8.0, 10.0))] * 3,
        "times": {pods: [turn(0.01, 0.01)] * 2 for pods in (PODS, WIDE)},
        "alone": [turn()] * 4,
        "among_many": [turn(among, direct_among)] * 2,
        "rss_idle": [69.0],
        "rss_many": [107.0],
        "restarts": [(3.0, 0)],
        "idle_writes": [0],
    }
    return Figures(**{**every, **more})


def said(found: Figures, **more: Any) -> dict[str, Any]:
    values = report.summary(found, SIZE)
    line: dict[str, Any] = json.loads(report.line(values, found.diary, **more))
    assert line["ok"] == report.holds(values)
    return line


def test_what_the_api_server_takes_longer_for_is_shown_and_not_judged() -> None:
    assert said(figures(1.1, 1.0))["missed"] == []
    line = said(figures(1.8, 2.1))
    assert (line["ok"], line["missed"]) == (True, ["new_job_among_1k_vs_empty"])
    assert "≤ 1.2  missed, not judged" in report.table(report.summary(figures(1.8, 2.1), SIZE), Diary())


def test_what_the_operator_adds_is_judged() -> None:
    line = said(figures(1.8, 1.4))
    assert (line["ok"], line["missed"]) == (False, ["new_job_among_1k_vs_empty", "new_job_among_1k_beyond_direct"])


def test_a_direct_client_that_was_faster_by_chance_counts_for_nothing() -> None:
    line = said(figures(1.1, 0.8))
    assert (line["ok"], line["missed"]) == (True, [])


def test_a_ratio_is_of_what_was_measured_in_the_same_round() -> None:
    """The machine was three times as slow in the second round, for all."""
    rates = [turn(90.0, 100.0), turn(30.0, 33.0), turn(91.0, 100.0)]
    line = said(figures(throughput=[Throughput(one, Cost(3.0, 8.0, 10.0)) for one in rates]))
    assert line["jobs_per_s_vs_direct"] == pytest.approx(0.909, abs=0.001)


@pytest.mark.parametrize(
    ("lost", "names"),
    [
        ({"throughput": []}, ["jobs_per_s_vs_kube_job", "jobs_per_s_vs_direct", "cpu_ms_per_job", "writes_per_job"]),
        ({"times": {}}, ["apply_to_32_pods_vs_direct"]),
        ({"rss_many": []}, ["rss_mb_1k_4k"]),
        ({"among_many": []}, ["new_job_among_1k_beyond_direct"]),
        ({"alone": []}, ["new_job_among_1k_beyond_direct"]),
        ({"restarts": []}, ["restart_writes_other_than_lease"]),
        ({"idle_writes": []}, ["idle_writes_other_than_lease"]),
    ],
)
def test_a_bound_without_a_figure_is_not_judged_and_the_run_not_ok(lost: dict[str, Any], names: list[str]) -> None:
    line = said(figures(**lost))
    assert (line["ok"], line["missed"], line["not_judged"]) == (False, [], names)
    shown = report.table(report.summary(figures(**lost), SIZE), Diary())
    assert shown.count("NOT JUDGED: too few undisturbed rounds") == len(names) + ("new_job_among" in names[0])


@pytest.mark.parametrize(
    ("rate", "cost", "seconds", "missed"),
    [
        (100.0, 8.0, 1.0, []),
        (110.0, 8.0, 1.0, ["jobs_per_s_vs_base"]),
        (100.0, 7.0, 1.0, ["cpu_ms_per_job_whole_life_vs_base"]),
        (100.0, 8.0, 0.8, ["apply_to_32_pods_vs_base"]),
    ],
)
def test_an_operator_is_not_worse_than_that_of_another_commit(
    rate: float, cost: float, seconds: float, missed: list[str]
) -> None:
    """The rate, the CPU time a job and the time to 32 pods are compared."""
    one = Throughput({**turn(100.0, 100.0), BASE: rate}, Cost(3.0, 8.0, 10.0), Cost(3.0, cost, 10.0))
    times = {pods: [{**turn(), BASE: seconds}] * 2 for pods in (PODS, WIDE)}
    line = said(figures(throughput=[one] * 3, times=times))
    assert (line["ok"], line["missed"]) == (not missed, missed)


def test_one_round_of_three_is_too_little_to_judge_by() -> None:
    rounds = figures().throughput
    assert said(figures(throughput=rounds[:2]))["ok"]
    line = said(figures(throughput=rounds[:1]))
    assert (line["ok"], line["jobs_per_s"], line["rounds"]["jobs_per_s"]) == (False, 100.0, 1)
    assert "jobs_per_s_vs_direct" in line["not_judged"]


def test_nothing_at_all_is_still_a_report() -> None:
    """Interrupted in the first second."""
    found = Figures(diary=Diary(disturbed=["interrupted"]))
    line = said(found)
    assert (line["ok"], line["disturbed"], line["jobs_per_s"]) == (False, ["interrupted"], None)
    judged = [bound.name for bound in report.BOUNDS if bound.judged and not bound.name.endswith("_vs_base")]
    assert line["not_judged"] == [name for name in judged if name != "operators_ended"]
    assert "disturbed: interrupted" in report.table(report.summary(found, SIZE), found.diary)


def test_a_cluster_without_an_audit_log_can_be_ok() -> None:
    rounds = [Throughput(turn(100.0, 100.0), Cost(3.0, 8.0, None))] * 3
    line = said(figures(throughput=rounds, restarts=[(3.0, None)], idle_writes=[None]))
    assert (line["ok"], line["not_judged"]) == (True, [])
    assert [line[name] for name in ("writes_per_job", "idle_writes_other_than_lease")] == [None, None]


def test_an_operator_that_ends_by_itself_is_a_fault_and_no_disturbance() -> None:
    line = said(figures(operators_ended=["operator.log"]))
    assert (line["ok"], line["missed"]) == (False, ["operators_ended"])
