"""Files of another commit, to run beside this checkout's."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def is_there(commit: str) -> bool:
    """Whether this clone has it; a shallow one may not."""
    return not git("cat-file", "-e", f"{commit}^{{commit}}").returncode


def unpack(commit: str, folder: Path, *paths: str) -> Path:
    """Write these files and folders of the commit, or all, below `folder`. Raises CalledProcessError."""
    archive = git("archive", commit, *paths)
    archive.check_returncode()
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True)
    return folder


def operator(commit: str, folder: Path) -> str:
    """The commit's operator below `folder`, as a PYTHONPATH. Raises CalledProcessError."""
    sources = ("operator/src", "trainer_image/src")
    unpack(commit, folder, *sources)
    return ":".join(str(folder / source) for source in sources)


def git(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    """git in this clone, which need not succeed."""
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=False)
