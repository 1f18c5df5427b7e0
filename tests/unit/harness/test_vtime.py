"""The virtual clock keeps asyncio's promises without waiting."""

import asyncio
import time

import pytest
from tests.harness.vtime import EPOCH, DeadlockError, VirtualLoop, run


def test_an_hour_of_sleep_costs_no_time() -> None:
    loop = VirtualLoop()
    before = time.monotonic()
    run(asyncio.sleep(3600), loop)
    assert loop.time() == pytest.approx(3600)
    assert (loop.wall() - EPOCH).total_seconds() == pytest.approx(3600)
    assert time.monotonic() - before < 60


def test_timers_fire_in_order_of_time_and_ties_in_order_of_setting() -> None:
    seen: list[str] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(2, seen.append, "c")
        loop.call_later(1, seen.append, "a")
        loop.call_later(1, seen.append, "b")
        await asyncio.sleep(3)

    run(main())
    assert seen == ["a", "b", "c"]


def test_waiting_for_what_never_comes_is_an_error_not_a_hang() -> None:
    async def main() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(DeadlockError):
        run(main())


def test_tasks_left_behind_are_cancelled() -> None:
    ended: list[str] = []

    async def forever() -> None:
        try:
            await asyncio.sleep(1e9)
        finally:
            ended.append("cancelled")

    async def main() -> None:
        task = asyncio.ensure_future(forever())
        await asyncio.sleep(1)
        assert not task.done()

    run(main())
    assert ended == ["cancelled"]
