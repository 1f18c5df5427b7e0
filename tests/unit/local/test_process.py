"""local/process.py: how a pod's process ended is told truly, also when it ends as it is being stopped."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from pathlib import Path

import pytest
from tests.machine import PATIENCE

from tfgpujob.local.process import Launch, Process


async def test_a_process_that_ends_as_it_is_stopped_keeps_its_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """asyncio asks for its exit code a moment after it has ended, and whoever else asks takes the code away."""
    stopped = threading.Event()
    ask = os.waitpid

    def ask_late(pid: int, options: int) -> tuple[int, int]:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        stopped.wait(PATIENCE)
        return ask(pid, options)

    monkeypatch.setattr(os, "waitpid", ask_late)
    process = Process(
        Launch(
            command=[sys.executable, "-c", "raise SystemExit(3)"],
            environment={},
            directory=tmp_path,
            log=tmp_path / "log",
            termination_log=tmp_path / "termination-log",
            grace_seconds=PATIENCE,
            heading="",
        ),
        lambda _: None,
        lambda _: None,
    )
    pid = await process.start()
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    process.stop()
    asyncio.get_running_loop().call_soon(stopped.set)
    assert await process.wait() == 3
