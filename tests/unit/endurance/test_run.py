"""tests/endurance/run.py and what is around it: what is judged, what is said, and how a job has to end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.endurance.job import STOPPED, Job
from tests.endurance.run import Found, _ends, judge
from tests.endurance.sampling import Key, Point
from tests.endurance.scenarios import BY_NAME, LONG, SCENARIOS, SHORT, Scenario
from tests.endurance.trainer import lanes
from tests.trainer.harness import Launcher, Task
from tests.unit.endurance.measured import SCENARIO, WORKER, samples


def judged(series: dict[Key, list[Point]], length: Any = LONG) -> Found:
    return judge(SCENARIO, series, length)


def test_a_healthy_run_is_ok_and_its_figures_are_said() -> None:
    found = judged(samples())
    assert found.problems == []
    assert found.figures["steps"] == 29_900
    assert found.figures["threads"] == [20, 20]
    assert found.figures["rss_ratio"] == found.figures["speed_ratio"] == found.figures["cpu_per_step_ratio"] == 1
    assert found.figures["others_share"] == pytest.approx(0.025, abs=0.01)


@pytest.mark.parametrize(
    ("measure", "value", "said"),
    [
        ("threads", lambda second: 20 + second // 20, f"{WORKER}: threads grows: 2"),
        ("descriptors", lambda second: 10 + second // 60, f"{WORKER}: descriptors grows"),
        ("rss", lambda second: 600e6 + 60_000 * second, f"{WORKER}: rss grows"),
        ("cpu", lambda second: 0.9 * second + 0.0005 * second**2, f"{WORKER}: cpu grows"),
    ],
)
def test_what_grows_is_named_with_its_process(measure: str, value: Callable[[int], float], said: str) -> None:
    (problem,) = judged(samples(**{measure: value})).problems
    assert problem.startswith(said)


def test_what_a_job_leaves_in_files_is_bounded_too() -> None:
    series = samples()
    series[("checkpoints", "kept")] = [point._replace(value=5) for point in series[("checkpoints", "kept")]]
    series[("log", "bytes")] = [point._replace(value=point.steps * 1000) for point in series[("log", "bytes")]]
    assert [problem.split(" is ")[0] for problem in judged(series).problems] == ["log: bytes", "checkpoints: kept"]


def test_a_process_that_was_not_seen_to_the_end_is_a_problem() -> None:
    series = {key: points[:5] if key[0] == WORKER else points for key, points in samples().items()}
    found = judged(series)
    assert f"{WORKER}: threads too few samples to judge: let it run for longer" in found.problems
    assert (found.figures["rss_ratio"], found.figures["speed_ratio"]) == (None, None)
    assert "no process was seen at its work" in judged({}).problems


def slower(second: int) -> float:
    return 100 * second - 0.05 * second**2


def slower_cpu(second: int) -> float:
    return 0.009 * slower(second)


def test_speed_is_judged_on_a_quiet_machine_only() -> None:
    own = {"cpu": slower_cpu, "steps": slower}
    (problem,) = judged(samples(**own, busy=lambda second: slower_cpu(second) + 0.05 * second)).problems
    assert problem.startswith("steps per second of the last tenth are 0.7")
    busy = judged(samples(**own, busy=lambda second: 2.0 * second))
    assert busy.problems == []
    assert busy.figures["others_share"] > 0.4
    assert judged(samples(**own), SHORT).problems == []


def test_what_a_step_costs_is_judged_on_a_quiet_machine_only() -> None:
    costs: Callable[[int], float] = lambda second: 0.9 * second + 0.0005 * second**2  # noqa: E731
    assert judged(samples(cpu=costs, busy=lambda second: 2.0 * second)).problems == []
    (problem,) = judged(samples(cpu=costs, busy=costs)).problems
    assert problem.startswith(f"{WORKER}: cpu grows")


def job(scenario: Scenario, codes: dict[str, int | None], tmp_path: Path) -> Job:
    class Ended:
        def __init__(self, code: int | None) -> None:
            self.code = code

        def poll(self) -> int | None:
            return self.code

        def send_signal(self, _: int) -> None:
            self.code = STOPPED

    tasks = {name: Task(Ended(code), tmp_path, tmp_path) for name, code in codes.items()}  # type: ignore[arg-type]
    return Job(scenario, Launcher(tmp_path), tmp_path, 0, tasks=tasks)


@pytest.mark.parametrize(
    ("scenario", "codes", "told", "said"),
    [
        ("multi-worker", {"worker-0": 0, "worker-1": 0}, False, []),
        ("multi-worker", {"worker-0": None, "worker-1": None}, True, []),
        ("predict", {"worker-0": 0}, True, []),
        ("multi-worker", {"worker-0": 0, "worker-1": 134}, False, ["worker-1 ended with exit code 134, not 0"]),
        ("multi-worker", {"worker-0": 161, "worker-1": 0}, True, ["worker-0 ended with exit code 161, not 143"]),
        ("parameter-server", {"ps-0": None, "worker-0": None, "chief-0": 0}, False, []),
        ("parameter-server", {"ps-0": 0, "chief-0": 0}, False, ["ps-0 ended with exit code 0, not 143"]),
    ],
)
def test_every_task_ends_as_its_role_has_to(
    scenario: str, codes: dict[str, int | None], told: bool, said: list[str], tmp_path: Path
) -> None:
    assert list(_ends(job(BY_NAME[scenario], codes, tmp_path), told=told)) == said


def test_lanes_take_all_scenarios_and_about_as_many_each() -> None:
    rows = lanes(SCENARIOS, 2)
    assert sorted(one.name for row in rows for one in row) == sorted(BY_NAME)
    assert abs(len(rows[0]) - len(rows[1])) <= 1
    assert len(lanes(SCENARIOS[:1], 2)) == 1


def test_every_strategy_and_every_source_is_among_the_scenarios() -> None:
    strategies = {"OneDevice", "Mirrored", "MultiWorkerMirrored", "ParameterServer", "Custom"}
    assert {one.strategy for one in SCENARIOS} == strategies
    kinds = {one.kind for one in SCENARIOS}
    assert kinds == {"arrays", "csv", "images", "tfrecord", "dataset", "generator"}
