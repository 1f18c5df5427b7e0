"""/healthz while the event loop is held: by a job for a moment, or by a fault of ours for good."""

from __future__ import annotations

import asyncio
import threading
import time
import urllib.error
import urllib.request

import pytest
from tests.machine import PATIENCE, free_port

from tfgpujob.shell import health
from tfgpujob.shell.metrics import Metrics


def ask(port: int, path: str = "healthz") -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=PATIENCE) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.fixture
def port() -> int:
    return free_port()


def while_held(port: int, limit: float, monkeypatch: pytest.MonkeyPatch) -> tuple[int, str]:
    """What it answers to who asks while a step of the loop does not end, as code of ours in a circle would not."""
    monkeypatch.setattr(health, "HELD_SECONDS", limit)
    found: list[tuple[int, str]] = []

    async def main() -> None:
        async with health.serving(port, list, lambda: True, list, Metrics()):
            await asyncio.sleep(0.1)
            asking = threading.Thread(target=lambda: found.append(ask(port)))
            asking.start()
            deadline = time.monotonic() + PATIENCE
            while not found and time.monotonic() < deadline:
                pass
            asking.join()

    asyncio.run(main())
    return found[0]


@pytest.mark.slow
def test_a_loop_that_is_busy_for_a_moment_is_alive(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    status, text = while_held(port, 60.0, monkeypatch)
    assert status == 200 and text.startswith("the event loop has not turned for")


@pytest.mark.slow
def test_a_loop_that_is_held_for_good_is_not(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert health.HELD_SECONDS == 60.0
    status, text = while_held(port, 0.5, monkeypatch)
    assert status == 500 and "has not turned" in text


async def test_what_is_wrong_is_said_at_once(port: int) -> None:
    wrong: list[str] = []
    is_ready: list[bool] = []
    async with health.serving(port, lambda: wrong, lambda: bool(is_ready), lambda: ["a job"], Metrics()):
        assert await asyncio.to_thread(ask, port) == (200, "ok")
        assert await asyncio.to_thread(ask, port, "readyz") == (503, "listing objects")
        is_ready.append(True)
        wrong.append("resync has ended")
        assert await asyncio.to_thread(ask, port) == (500, "resync has ended")
        assert await asyncio.to_thread(ask, port, "readyz") == (200, "ok\na job")
        assert (await asyncio.to_thread(ask, port, "metrics"))[0] == 200


async def test_a_port_that_is_taken_is_said(port: int) -> None:
    async with health.serving(port, list, lambda: True, list, Metrics()):
        with pytest.raises(OSError, match="in use"):
            async with health.serving(port, list, lambda: True, list, Metrics()):
                pass
