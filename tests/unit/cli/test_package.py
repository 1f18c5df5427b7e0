"""What installing the package brings."""

from __future__ import annotations

import tomllib
from pathlib import Path

from tfgpujob import __version__

ROOT = Path(__file__).resolve().parents[3]


def test_a_local_run_gets_the_trainer_of_this_release() -> None:
    project = tomllib.loads((ROOT / "operator/pyproject.toml").read_text())["project"]
    trainer = (ROOT / "trainer_image/src/tfgpujob_trainer/__init__.py").read_text()
    assert f'__version__ = "{__version__}"' in trainer
    for extra, build in (("local", "cpu"), ("local-gpu", "gpu")):
        assert project["optional-dependencies"][extra][0] == f"tfgpujob-trainer[{build}]=={__version__}"
