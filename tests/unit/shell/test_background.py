import asyncio

import pytest
from tests.harness.vtime import virtual

from tfgpujob.shell.background import BackgroundTasks, TaskDiedError


async def forever() -> None:
    await asyncio.Event().wait()


async def broken() -> None:
    await asyncio.sleep(3)
    raise ValueError("no more")


@virtual
async def test_a_task_that_dies_ends_the_wait_and_says_why() -> None:
    tasks = BackgroundTasks()
    tasks.start("good", forever())
    tasks.start("bad", broken())
    with pytest.raises(TaskDiedError, match="bad has ended: no more") as died:
        await tasks.wait(asyncio.Event())
    assert isinstance(died.value.__cause__, ValueError)
    assert tasks.problems() == ["bad has ended"]


@virtual
async def test_a_task_that_was_heard_once_and_fell_silent_is_a_problem() -> None:
    tasks = BackgroundTasks()
    tasks.start("periodic", forever(), silence=60)
    tasks.start("waiting", forever())
    await asyncio.sleep(100)
    assert tasks.problems() == []
    tasks.beat("periodic")
    await asyncio.sleep(59)
    assert tasks.problems() == []
    await asyncio.sleep(2)
    assert tasks.problems() == ["periodic has been silent for 61 s"]


@virtual
async def test_stop_waits_for_the_clean_up() -> None:
    cleaned: list[str] = []

    async def tidy() -> None:
        try:
            await forever()
        finally:
            await asyncio.sleep(1)
            cleaned.append("done")

    tasks = BackgroundTasks()
    tasks.start("tidy", tidy())
    stop = asyncio.Event()
    asyncio.get_running_loop().call_later(5, stop.set)
    await tasks.wait(stop)
    await tasks.stop_all()
    assert cleaned == ["done"]
    assert tasks.problems() == []
