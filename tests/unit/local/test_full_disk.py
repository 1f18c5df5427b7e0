"""A run on this machine whose disk is full for a while: it reports that, continues, and ends as it should."""

from __future__ import annotations

import asyncio
import errno
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.machine import PATIENCE
from tests.small_disk import fill, small_disk
from tests.unit.local.job import until, write_job

from tfgpujob.core.observed.snapshot import Kind, Object
from tfgpujob.exits import Exit
from tfgpujob.kube.errors import ApiError
from tfgpujob.local.cluster import LocalCluster
from tfgpujob.local.process import Launch

pytestmark = pytest.mark.slow

CHATTY = """
import pathlib, sys, time
for number in range(1000):
    if pathlib.Path(sys.argv[1]).exists():
        break
    print(f"line {number} " + "x" * 2000, flush=True)
    time.sleep(0.01)
print("the end", flush=True)
"""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", "2m") as folder:
        yield folder


class Started:
    """A run whose words go to a file elsewhere."""

    def __init__(self, disk: Path, *command: str) -> None:
        self._words = disk.parent / "words"
        arguments = [sys.executable, "-m", "tfgpujob.cli", "run", "job.yaml", "--local", *command]
        with self._words.open("w") as out:
            self.process = subprocess.Popen(arguments, cwd=disk, stdout=out, stderr=out)

    def said(self) -> str:
        return self._words.read_text()

    def end(self) -> int:
        return self.process.wait(PATIENCE)


def log(disk: Path, replica: str = "worker-0") -> str:
    path = disk / "runs/try/logs" / f"{replica}.log"
    return path.read_text() if path.exists() else ""


def test_a_job_goes_on_when_its_disk_is_full_and_its_log_when_it_is_not(disk: Path, tmp_path: Path) -> None:
    write_job(disk, workers=1)
    run = Started(disk, "--", "python", "-c", CHATTY, str(tmp_path / "enough"))
    until(lambda: "line 3 " in log(disk))
    ballast = fill(disk)
    until(lambda: "No space left on device; the job continues" in run.said())
    # It prints on, more than a pipe holds.
    full = run.said().count("line")
    until(lambda: run.said().count("line") > full + 100)
    ballast.unlink()
    until(lambda: "bytes are missing here: the disk was full" in log(disk))
    (tmp_path / "enough").touch()
    assert run.end() == Exit.OK, run.said()
    assert "worker-0.log continues; " in run.said()
    assert run.said().count("the job continues") == 1
    assert "the end" in log(disk)
    assert "try succeeded" in run.said()


def test_a_run_is_stopped_while_its_disk_is_full(disk: Path) -> None:
    write_job(disk, workers=1)
    stand_in = Path(__file__).with_name("stand_in.py")
    run = Started(disk, "--", "python", str(stand_in), "wait")
    until(lambda: "started" in log(disk))
    ballast = fill(disk)
    run.process.send_signal(signal.SIGINT)
    assert run.end() == Exit.INTERRUPTED, run.said()
    assert "runs/try: No space left on device; the state of the run is not saved" in run.said()
    ballast.unlink()
    again = subprocess.run(
        [sys.executable, "-m", "tfgpujob.cli", "run", "job.yaml", "--local", "--resume", "--", "true"],
        cwd=disk,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert again.returncode == Exit.OK, again.stderr


async def test_a_replica_that_no_file_can_be_written_for_is_refused_and_tried_again(tmp_path: Path) -> None:
    """A pod without a process would be waited for without end."""
    full = OSError(errno.ENOSPC, "No space left on device", "worker-0.json")

    def launch(_: Object) -> Launch:
        if full.filename:
            raise full
        return Launch(
            command=["true"],
            environment={},
            directory=tmp_path,
            log=tmp_path / "log",
            termination_log=tmp_path / "end",
            grace_seconds=1,
            heading="===",
        )

    ended = asyncio.Event()

    def changed(_: Kind, pod: Object) -> None:
        if pod["status"]["phase"] == "Succeeded":
            ended.set()

    job = {"metadata": {"name": "try", "namespace": "d", "resourceVersion": "1"}}
    silent: dict[str, Any] = dict.fromkeys(("gone", "on_line", "on_event", "on_trouble"), lambda *_: None)
    cluster = LocalCluster(job, launch=launch, changed=changed, **silent)
    pod = {"metadata": {"name": "try-worker-0"}}
    with pytest.raises(ApiError, match=r"507 InsufficientStorage: worker-0\.json: No space left on device"):
        await cluster.create(Kind.POD, "d", pod)
    full.filename = None
    await cluster.create(Kind.POD, "d", pod)
    await asyncio.wait_for(ended.wait(), PATIENCE)


def test_output_that_cannot_be_written_is_one_line(disk: Path) -> None:
    fill(disk)
    with (disk / "out").open("w") as out:
        done = subprocess.run(
            [sys.executable, "-m", "tfgpujob.cli", "explain", "--help"],
            stdout=out,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == Exit.NO_SPACE
    assert done.stderr == "tfgpu: standard output: No space left on device; make room, and try again\n"
