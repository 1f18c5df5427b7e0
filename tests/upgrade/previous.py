"""The last release: what people upgrade from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from tests import commits

PREVIOUS = "a815c9ee3e37e18ed0c25293b3a3afdb8d0fb65a"
"""Nothing has been released yet, so it is a commit: the one that the first release began with. From then on, a tag."""
DEFINITIONS = ("tfgpujobs.yaml", "tfgpujobs-no-cel.yaml")


def is_there() -> bool:
    """Whether this clone has it."""
    return commits.is_there(PREVIOUS)


def checkout(folder: Path) -> str:
    """Its operator's packages, as a PYTHONPATH."""
    return commits.operator(PREVIOUS, folder)


def definition(name: str) -> dict[str, Any]:
    """Its definition of TFGPUJobs, of one of the two files."""
    shown = commits.git("show", f"{PREVIOUS}:crds/{name}")
    shown.check_returncode()
    found: dict[str, Any] = yaml.load(shown.stdout, Loader=yaml.CSafeLoader)
    return found
