"""tests/bench/rounds.py: a round with a failed request is named and measured again, and no figure is lost to it."""

from __future__ import annotations

import pytest
from tests.bench.disturbance import DisturbedError
from tests.bench.rounds import Diary, Rounds

from tfgpujob.kube.errors import ApiError


async def played(measured: list[float | Exception]) -> tuple[Diary, list[float], int]:
    """Two rounds of these values; how often a round was mended."""
    diary, kept, mended = Diary(), list[float](), 0
    values = iter(measured)

    async def mend() -> None:
        nonlocal mended
        mended += 1

    async def measure(_: int) -> float:
        if isinstance(value := next(values), Exception):
            raise value
        return value

    await Rounds(diary, mend, lambda _: None).repeat("throughput", 2, measure, kept.append)
    assert len(diary.noise["throughput"]) == len(measured)
    return diary, kept, mended


@pytest.mark.parametrize("error", [ApiError(409, "Conflict", "taken"), TimeoutError("late"), DisturbedError("gone")])
async def test_a_round_that_could_not_be_measured_is_measured_again(error: Exception) -> None:
    diary, kept, mended = await played([1.0, error, 2.0])
    assert (diary.disturbed, kept, mended) == ([f"throughput, 2 of 2: {error}"], [1.0, 2.0], 1)


async def test_three_disturbed_rounds_in_a_row_end_a_figure() -> None:
    diary, kept, _ = await played([1.0, *[TimeoutError("late")] * 3])
    assert (diary.disturbed[-1], kept) == ("throughput: disturbed 3 times in a row, 1 of 2 rounds measured", [1.0])
