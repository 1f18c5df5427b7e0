"""What installing the packages brings."""

from __future__ import annotations

import tomllib
from pathlib import Path

import tfgpujob_contract
from tfgpujob import __version__

ROOT = Path(__file__).resolve().parents[3]


def test_a_local_run_gets_the_trainer_of_this_release() -> None:
    project = tomllib.loads((ROOT / "operator/pyproject.toml").read_text())["project"]
    trainer = (ROOT / "trainer_image/src/tfgpujob_trainer/__init__.py").read_text()
    assert f'__version__ = "{__version__}"' in trainer
    for extra, build in (("local", "cpu"), ("local-gpu", "gpu")):
        assert project["optional-dependencies"][extra][0] == f"tfgpujob-trainer[{build}]=={__version__}"


def test_both_packages_get_the_contract_of_this_release() -> None:
    assert tfgpujob_contract.__version__ == __version__
    for package in ("operator", "trainer_image"):
        project = tomllib.loads((ROOT / package / "pyproject.toml").read_text())["project"]
        assert f"tfgpujob-contract=={__version__}" in project["dependencies"]
