"""A disk of a few megabytes that can be filled and emptied: a tmpfs, which takes the right to mount."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_CHUNK = 1 << 12


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """Skips the test if mounting is not permitted. `size` as in mount: 4m."""
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode != 0:
        pytest.skip(f"a disk to fill: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(disk: Path, leave: int = 0) -> Path:
    """Fill it to the last byte, except `leave`; yields the file."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while file.write(b"x" * _CHUNK):
                pass
        except OSError:
            pass
        file.truncate(max(0, file.tell() - leave))
    return ballast
