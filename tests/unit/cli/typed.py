"""Verbs as people type them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from _pytest.capture import CaptureResult
from tests.harness.scenario import job

from tfgpujob.cli import main as cli
from tfgpujob.exits import Exit

Output = pytest.CaptureFixture[str]


def typed(capsys: Output, *words: str, code: int = Exit.OK) -> CaptureResult[str]:
    """What has been printed once `tfgpu WORDS` has ended with this code."""
    assert cli.main(words) == code
    return capsys.readouterr()


def submit(tmp_path: Path, name: str, **fields: Any) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(job(name, **fields)))
    assert cli.main(["submit", str(file)]) == Exit.OK
