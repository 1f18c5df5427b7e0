"""tests/bench/rounds.py: a disturbed round is named and measured again, and no figure is lost to it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.bench.disturbance import DisturbedError, Surroundings
from tests.bench.rounds import Diary, Rounds

from tfgpujob.kube.errors import ApiError

QUIET = Surroundings(
    operator=1, leader="operator since 1", not_ready=frozenset(), namespaces={"bench": "uid"}, deleted=((),),
    cuts=((),), stalls=(),
)  # fmt: skip


async def played(after: list[Surroundings], measured: list[float | Exception]) -> tuple[Diary, list[float], int]:
    """Two rounds of these surroundings and values; how often a round was mended."""
    diary, kept, mended = Diary(), list[float](), 0
    looks, values = iter(after), iter(measured)

    async def look() -> Surroundings:
        return next(looks, QUIET)

    async def mend() -> None:
        nonlocal mended
        mended += 1

    async def measure(_: int) -> float:
        if isinstance(value := next(values), Exception):
            raise value
        return value

    await Rounds(diary, look, mend, lambda _: None).repeat("throughput", 2, measure, kept.append)
    return diary, kept, mended


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"leader": "another since 2"}, "the Lease was held by operator since 1, and then by another since 2"),
        ({"not_ready": frozenset({"node-1"})}, "node node-1 is no longer Ready"),
        ({"namespaces": {"bench": "another"}}, "namespace bench was deleted"),
        ({"deleted": (("a", "b"),)}, "pod a and 1 other pods were deleted"),
        ({"cuts": (("the watch of pods was cut: 410",),)}, "the watch of pods was cut: 410"),
        ({"stalls": ["the API server took 3.0 s for an answer"]}, "the API server took 3.0 s for an answer"),
    ],
)
async def test_what_changed_under_a_round_is_named_and_it_is_measured_again(changed: dict[str, Any], said: str) -> None:
    diary, kept, mended = await played([QUIET, replace(QUIET, **changed)], [1.0, 2.0, 3.0])
    assert (diary.disturbed, kept, mended) == ([f"throughput, 1 of 2: {said}"], [2.0, 3.0], 1)
    assert len(diary.noise["throughput"]) == 3


@pytest.mark.parametrize("error", [ApiError(409, "Conflict", "taken"), TimeoutError("late"), DisturbedError("gone")])
async def test_a_round_that_could_not_be_measured_is_measured_again(error: Exception) -> None:
    diary, kept, _ = await played([], [1.0, error, 2.0])
    assert (diary.disturbed, kept) == ([f"throughput, 2 of 2: {error}"], [1.0, 2.0])


async def test_three_disturbed_rounds_in_a_row_end_a_figure() -> None:
    diary, kept, _ = await played([], [1.0, *[TimeoutError("late")] * 3])
    assert (diary.disturbed[-1], kept) == ("throughput: disturbed 3 times in a row, 1 of 2 rounds measured", [1.0])


async def test_a_new_operator_of_ours_may_acquire_the_lease() -> None:
    diary, kept, _ = await played([QUIET, replace(QUIET, operator=2, leader="operator since 2")], [1.0, 2.0])
    assert (diary.disturbed, kept) == ([], [1.0, 2.0])
