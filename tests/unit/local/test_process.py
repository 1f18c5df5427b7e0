"""local/process.py: the end of a pod's process is reported correctly, also when it ends while being stopped."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from pathlib import Path

import pytest
from tests.machine import PATIENCE

from tfgpujob.local import process as process_module
from tfgpujob.local.process import Launch, Process


async def test_a_process_that_ends_as_it_is_stopped_keeps_its_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """asyncio reads its exit code a moment after it has ended, and another reader takes the code away."""
    stopped = threading.Event()
    ask = os.waitpid

    def ask_late(pid: int, options: int) -> tuple[int, int]:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        stopped.wait(PATIENCE)
        return ask(pid, options)

    monkeypatch.setattr(os, "waitpid", ask_late)
    process = new_process(tmp_path, "raise SystemExit(3)")
    pid = await process.start()
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    process.stop()
    asyncio.get_running_loop().call_soon(stopped.set)
    assert await process.wait() == 3


@pytest.mark.parametrize(
    ("program", "killed_meanwhile", "code", "out_of_memory"),
    [
        ("os.kill(os.getpid(), 9)", 1, 137, True),
        ("os.kill(os.getpid(), 9)", 0, 137, False),
        ("sys.exit(1)", 1, 1, False),
    ],
)
async def test_one_that_the_kernel_killed_for_lack_of_memory_is_known(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    program: str,
    killed_meanwhile: int,
    code: int,
    out_of_memory: bool,
) -> None:
    vmstat = tmp_path / "vmstat"
    vmstat.write_text("pgfault 7\noom_kill 3\n")
    monkeypatch.setattr(process_module, "_VMSTAT", vmstat)
    said = f"open({str(vmstat)!r}, 'w').write('oom_kill {3 + killed_meanwhile}')"
    process = new_process(tmp_path, f"import os, sys\n{said}\n{program}")
    await process.start()
    assert (await process.wait(), process.out_of_memory) == (code, out_of_memory)


def new_process(folder: Path, program: str) -> Process:
    launch = Launch(
        command=[sys.executable, "-c", program],
        environment={},
        directory=folder,
        log=folder / "log",
        termination_log=folder / "termination-log",
        grace_seconds=PATIENCE,
        heading="",
    )
    return Process(launch, lambda _: None, lambda _: None)
