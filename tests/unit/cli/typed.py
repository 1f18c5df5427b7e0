"""Verbs as people type them."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from tests.harness.scenario import job

from tfgpujob.cli import main as cli
from tfgpujob.exits import Exit

Output = pytest.CaptureFixture[str]


def submit(tmp_path: Path, name: str, *, worker: int) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(job(name, worker=worker)))
    assert cli.main(["submit", str(file)]) == Exit.OK
