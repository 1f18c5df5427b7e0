import asyncio

import pytest
from tests.harness.vtime import DeadlockError, run, virtual

from tfgpujob.shell.store import Key
from tfgpujob.shell.workqueue import LONGEST_BACKOFF, WorkQueue

A, B = Key("ns", "a"), Key("ns", "b")


def queue() -> WorkQueue:
    return WorkQueue(random=lambda: 0.0, workers=8)


async def drain(q: WorkQueue, count: int) -> list[Key]:
    return [await q.get() for _ in range(count)]


@virtual
async def test_a_key_added_twice_waits_once() -> None:
    q = queue()
    q.add(A)
    q.add(A)
    assert len(q) == 1
    assert await q.get() == A
    assert len(q) == 0


@virtual
async def test_a_key_in_hand_is_given_to_nobody_else_and_runs_again_after() -> None:
    q = queue()
    q.add(A)
    held = await q.get()
    q.add(A)
    assert len(q) == 0
    assert q.active == 1
    q.done(held)
    assert await q.get() == A
    q.done(A)
    assert len(q) == 0


@virtual
async def test_namespaces_take_turns() -> None:
    q = queue()
    for name in ("a", "b", "c"):
        q.add(Key("many", name))
    q.add(Key("one", "x"))
    assert await drain(q, 4) == [Key("many", "a"), Key("one", "x"), Key("many", "b"), Key("many", "c")]


@virtual
async def test_no_namespace_has_all_workers() -> None:
    q = WorkQueue(random=lambda: 0.0, workers=4)
    for name in ("a", "b", "c", "d", "e"):
        q.add(Key("many", name))
    taken = await drain(q, 3)
    waiting = asyncio.create_task(q.get())
    await asyncio.sleep(0)
    assert not waiting.done()
    assert len(q) == 2
    q.add(Key("one", "x"))
    assert await waiting == Key("one", "x")
    waiting = asyncio.create_task(q.get())
    await asyncio.sleep(0)
    assert not waiting.done()
    q.done(taken[0])
    assert await waiting == Key("many", "d")


@virtual
async def test_a_later_deadline_replaces_an_earlier_one() -> None:
    q = queue()
    q.requeue_after(A, 5)
    q.requeue_after(A, 60)
    await q.get()
    assert asyncio.get_running_loop().time() == pytest.approx(60)


@virtual
async def test_a_deadline_in_the_past_is_due_now() -> None:
    q = queue()
    q.requeue_after(A, -3)
    await q.get()
    assert asyncio.get_running_loop().time() == pytest.approx(0)


@virtual
async def test_a_retry_does_not_lose_the_deadline() -> None:
    loop, q, seen = asyncio.get_running_loop(), queue(), []
    q.requeue_after(A, 30)
    q.requeue_with_backoff(A)
    for _ in range(2):
        q.done(await q.get())
        seen.append(loop.time())
    assert seen == [pytest.approx(0.025), pytest.approx(30)]


@virtual
async def test_backoff_doubles_up_to_a_minute_and_starts_over_after_success() -> None:
    q = WorkQueue(random=lambda: 0.999999)
    delays = [q.requeue_with_backoff(A) for _ in range(14)]
    assert delays[:4] == pytest.approx([0.05, 0.1, 0.2, 0.4], rel=1e-4)
    assert delays[-1] == pytest.approx(LONGEST_BACKOFF, rel=1e-4)
    assert q.failures(A) == 14
    q.succeeded(A)
    assert q.requeue_with_backoff(A) == pytest.approx(0.05, rel=1e-4)
    assert q.requeue_with_backoff(B, at_least=7) == 7


def test_forgotten_and_cleared_keys_never_come() -> None:
    async def main() -> None:
        q = queue()
        q.requeue_after(A, 5)
        q.requeue_with_backoff(A)
        q.forget(A)
        q.add(B)
        q.requeue_after(B, 1)
        q.clear()
        await q.get()

    with pytest.raises(DeadlockError):
        run(main())


@virtual
async def test_a_cancelled_getter_loses_no_key() -> None:
    q = queue()
    first, second = asyncio.create_task(q.get()), asyncio.create_task(q.get())
    await asyncio.sleep(0)
    q.add(A)
    first.cancel()
    assert await second == A
