"""How long to wait before the next try."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from tfgpujob.core.policies.backoff import delay

TRIES = st.integers(min_value=1, max_value=10_000)
FIRST = st.sampled_from([1, 2, 10])
CAP = st.sampled_from([30, 60, 300, 360])


@given(TRIES, FIRST, CAP, st.text(max_size=20))
def test_it_doubles_to_the_cap_give_or_take_a_fifth(tries: int, first: int, cap: int, seed: str) -> None:
    wanted = min(cap, first * 2.0 ** min(tries - 1, 60))
    found = delay(tries, first=first, cap=cap, seed=seed).total_seconds()
    assert wanted * 0.8 - 0.5 <= found <= wanted * 1.2 + 0.5


@given(TRIES, st.text(max_size=20))
def test_an_operator_that_restarts_agrees(tries: int, seed: str) -> None:
    assert delay(tries, first=2, cap=60, seed=seed) == delay(tries, first=2, cap=60, seed=seed)


def test_it_is_never_nothing_so_that_no_loop_is_hot() -> None:
    assert min(delay(1, first=1, cap=60, seed=str(seed)) for seed in range(1000)) >= timedelta(seconds=1)


def test_many_jobs_spread() -> None:
    waits = {delay(5, first=10, cap=360, seed=f"job-{index}") for index in range(100)}
    assert len(waits) > 20
