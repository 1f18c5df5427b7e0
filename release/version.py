"""The version, which stands in several files: all of a release belongs together."""

import re
from pathlib import Path

PLACES = (
    "operator/src/tfgpujob/__init__.py",
    "operator/pyproject.toml",
    "trainer_image/pyproject.toml",
    "trainer_image/src/tfgpujob_contract/__init__.py",
    "trainer_image/src/tfgpujob_trainer/__init__.py",
    "charts/tfgpujob/Chart.yaml",
    "docs/install.md",
    "tests/pages.py",
)
"""Each holds it at least once."""
_FORM = re.compile(r"\d+\.\d+\.\d+(-(alpha|beta|rc)\.\d+)?")


class VersionError(Exception):
    """That is no version of a release. The message says what is."""


def current(root: Path) -> str:
    """The version of the files under `root`."""
    found = re.search(r'__version__ = "([^"]+)"', (root / PLACES[0]).read_text())
    assert found
    return found[1]


def set_version(root: Path, version: str) -> None:
    """Write it into every place. Raises VersionError."""
    if not _FORM.fullmatch(version):
        raise VersionError(f"{version!r} is no version: write MAJOR.MINOR.PATCH, such as 0.2.0 or 0.2.0-rc.1")
    now = re.compile(rf"(?<![\d.]){re.escape(current(root))}(?![\d.]*\d)")
    for place in PLACES:
        path = root / place
        path.write_text(now.sub(version, path.read_text()))
