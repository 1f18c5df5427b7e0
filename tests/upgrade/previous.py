"""The last release: what people upgrade from."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
PREVIOUS = "a815c9ee3e37e18ed0c25293b3a3afdb8d0fb65a"
"""Nothing has been released yet, so it is a commit: the one that the first release began with. From then on, a tag."""
DEFINITIONS = ("tfgpujobs.yaml", "tfgpujobs-no-cel.yaml")


def is_there() -> bool:
    """Whether this clone has it; a shallow one has not."""
    return not _git("cat-file", "-e", f"{PREVIOUS}^{{commit}}").returncode


def checkout(folder: Path) -> Path:
    """Its operator's package; the folder to import it from."""
    archive = _git("archive", PREVIOUS, "operator/src")
    archive.check_returncode()
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True)
    return folder / "operator/src"


def definition(name: str) -> dict[str, Any]:
    """Its definition of TFGPUJobs, of one of the two files."""
    shown = _git("show", f"{PREVIOUS}:crds/{name}")
    shown.check_returncode()
    found: dict[str, Any] = yaml.load(shown.stdout, Loader=yaml.CSafeLoader)
    return found


def _git(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=False)
