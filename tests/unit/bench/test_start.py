"""tests/bench/start: moments by the trainer's ledger, and the figures of a run."""

from __future__ import annotations

import pytest
from tests.bench.start import __main__ as bench
from tests.bench.start.moments import medians, of_ledger, since

LEDGER = {
    "until": 120_500,
    "parts": {"importing": 9_000, "waiting": 500, "useful": 1_000},
    "marks": {"started": 110_200, "imported": 119_000, "resolved": 119_400, "stepped": 120_000, "failed": 1},
}


def test_the_moments_are_the_ledgers_since_the_submission() -> None:
    times = of_ledger(LEDGER)
    assert times["program"] == 110.0
    assert since(109.5, {"stepped": 120.0, **times, "accepted": 109.0}) == {
        "accepted": 0.0,
        "program": 0.5,
        "started": 0.7,
        "imported": 9.5,
        "resolved": 9.9,
        "stepped": 10.5,
    }


def test_what_one_round_lacks_has_no_median() -> None:
    rounds = [{"began": 1.0, "stepped": 4.0}, {"stepped": 6.0}, {"began": 2.0, "stepped": 9.0}]
    assert medians(rounds) == {"stepped": 6.0}


@pytest.mark.parametrize(("restart", "ok"), [(12.9, True), (13.1, False)])
def test_a_run_is_judged_by_the_medians_of_its_ratios(restart: float, ok: bool) -> None:
    floor = [{"stepped": 10.0}] * 3
    rounds = {
        "first_step": [{"stepped": seconds} for seconds in (15.0, 14.0, 40.0)],
        "first_step_floor": floor,
        "restart": [{"stepped": restart}] * 3,
        "restart_floor": floor,
    }
    figures = bench.summary(rounds)
    assert (figures["ok"], figures["first_step_vs_floor"]) == (ok, 1.5)
    assert figures["interval"] == {
        "first_step_vs_floor": [1.4, 4.0],
        "restart_vs_floor": [round(restart / 10, 3)] * 2,
    }
