"""`tfgpu doctor --local` on machines with one fault each."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tfgpujob import __version__
from tfgpujob.local.doctor import Machine, examine, look

INSTALLED = {"tensorflow-cpu": "2.21.0", "keras": "3.15.1", "tfgpujob-trainer": __version__}
HEALTHY = Machine(
    installed=INSTALLED,
    pinned={"keras": "3.15.1", "tensorboard": "2.21.0"},
    gpus_on_the_bus=2,
    driver=True,
    shared_memory=8 << 30,
    free_disk=100 << 30,
)


@pytest.mark.parametrize(
    ("fault", "what", "fix"),
    [
        (
            {"installed": {**INSTALLED, "tensorflow": "2.21.0"}},
            "2 times, as tensorflow and tensorflow-cpu",
            "uninstall",
        ),
        ({"installed": {**INSTALLED, "keras": "3.0.0"}}, "keras is 3.0.0, and the trainer is tested with", "'keras==3"),
        ({"installed": {"tfgpujob-trainer": __version__}}, "TensorFlow is not installed", "tfgpujob[local]"),
        ({"installed": {"tensorflow": "2.21.0"}}, "the trainer is not installed", "tfgpujob[local]"),
        ({"installed": {**INSTALLED, "tfgpujob-trainer": "0.0.1"}}, "the trainer is 0.0.1", "tfgpujob-trainer=="),
        ({"driver": False}, "2 NVIDIA devices are in this machine", "--gpus all"),
        ({"shared_memory": 64 << 20}, "/dev/shm has 64 MiB", "--shm-size"),
        ({"free_disk": 100 << 20}, "100 MiB are free", "--dir"),
    ],
)
def test_each_fault_is_found_and_no_other(fault: dict[str, Any], what: str, fix: str) -> None:
    [(said, advice)] = examine(replace(HEALTHY, **fault))
    assert what in said
    assert fix in advice


def test_a_healthy_machine_has_nothing() -> None:
    assert list(examine(HEALTHY)) == []
    assert list(examine(replace(HEALTHY, gpus_on_the_bus=0, driver=False, shared_memory=None))) == []


def test_this_machine_can_be_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "tensorflow_cpu-2.21.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tensorflow_cpu\nVersion: 2.21.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = look()
    assert found.installed["pydantic"]
    assert found.installed["tensorflow-cpu"] == "2.21.0", "as its own wheel writes the name"
    assert found.free_disk > 0
