"""Cgroups with a limit, into which a test moves a process."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from tests.trainer.harness import until

from tfgpujob_trainer.machine import usage


@contextmanager
def cgroup(controller: str, file: str, value: int) -> Iterator[Path]:
    """A cgroup of this controller with one limit. Skips where none can be made."""
    directory = None
    try:
        directory = Path(tempfile.mkdtemp(prefix="tfgpu-test-", dir=usage.cgroup(controller)[0]))
        (directory / file).write_text(str(value))
    except OSError as error:
        if directory is not None:
            directory.rmdir()
        pytest.skip(f"no cgroup of the controller {controller} can be made here: {error.strerror}")
    try:
        yield directory
    finally:
        until(lambda: not (directory / "cgroup.procs").read_text(), 20)
        directory.rmdir()


def memory_cgroup(size: int) -> AbstractContextManager[Path]:
    """A cgroup with `size` bytes of memory, under either version of cgroups."""
    file = "memory.limit_in_bytes" if (usage.CGROUPS / "memory").is_dir() else "memory.max"
    return cgroup("memory", file, size)
