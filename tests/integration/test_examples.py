"""Every script of examples/ and of the pages, as it stands, submitted to the cluster beside its run on this machine.

They find the same numbers, and write the same files.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.integration.tool import Tool
from tests.integration.training import log
from tests.machine import PATIENCE
from tests.pages import PAGES, ROOT, files

TRAINER_PYTHON = ROOT / ".venv-trainer/bin/python"
"""With TensorFlow, which the tools have not."""
CLAIM = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
SHORT = ("scripts/multi_worker", "programs/multi_worker_loop", "docs/scripts.md/train")
"""For make test-cluster: one of workers, one with a loop of its own, the first one that a newcomer types."""
FLAGS = {
    "scripts/mirrored": ("--gpus", "2"),
    "scripts/model_parallel": ("--gpus", "4"),
    "scripts/parameter_servers": ("--gpus", "0"),
    "examples/parameter_server_loop": ("--gpus", "0"),
    "programs/custom_training": ("--gpus", "2"),
    "docs/larger-than-a-gpu.md/larger": ("--workers", "2", "--gpus", "2"),
}
OF_TWO = ("--workers", "2")
MODULES = ("docs/tutorial.md/train", "docs/trainer.md/techniques")
OF_A_MODULE = ("--workers", "2", "--batch", "128", "--epochs", "2")
RESULT = re.compile(
    r"(?:tfgpu-train: )?((?:epoch \d+|(?:train|validation|test|evaluate\S*):|accuracy|learning rate|loss).*)"
)
OF_THE_MACHINE = re.compile(r"(?:, )?\d+ examples/s.*")
NUMBER = re.compile(r"\d+\.\d+(?:e-?\d+)?")
CLOSE = 1e-2, 2e-3
"""Relative, absolute. float32, and sums whose order is the machine's: what a row more or less changes is larger."""


def scripts() -> dict[str, str]:
    """The text of each by its name."""
    paths = [*sorted(ROOT.glob("examples/*s/*.py")), ROOT / "examples/parameter_server_loop.py"]
    found = {f"{path.parent.name}/{path.stem}": path.read_text() for path in paths}
    for page in PAGES:
        for name, text in files(page).items():
            if name.endswith(".py"):
                found[f"{page.relative_to(ROOT)}/{Path(name).stem}"] = text
    return found


SCRIPTS = scripts()


def results(text: str) -> tuple[list[str], list[float]]:
    """What the lines with results say, without their numbers, and the numbers."""
    found = (RESULT.match(line) for line in text.splitlines())
    lines = [OF_THE_MACHINE.sub("", line[1]) for line in found if line]
    lines = [line for line in lines if NUMBER.search(line)]
    return [NUMBER.sub("N", line) for line in lines], [float(n) for line in lines for n in NUMBER.findall(line)]


@pytest.mark.parametrize("script", [s if s in SHORT else pytest.param(s, marks=pytest.mark.deep) for s in SCRIPTS])
def test_it_finds_in_the_cluster_what_it_finds_here(script: str, tool: Tool) -> None:
    workspace, stem = tool.workspace, script.rpartition("/")[2]
    name = stem.replace("_", "-")
    workspace.kube.create("PersistentVolumeClaim", workspace.namespace, {"metadata": {"name": "runs"}, "spec": CLAIM})
    (tool.folder / f"{stem}.py").write_text(SCRIPTS[script])
    flags = FLAGS.get(script, OF_A_MODULE if script in MODULES else OF_TWO)
    here = [f"{stem}.py", *flags]
    if script in MODULES:
        (tool.folder / "job.yaml").write_text(tool.run("submit", *here, "--dry-run"))
        here = ["job.yaml"]
    before = {path.name for path in tool.folder.iterdir()} | {"runs", "__pycache__"}
    local = tool.start(str(TRAINER_PYTHON), "-m", "tfgpujob.cli", "run", *here, "--local")
    try:
        tool.run("submit", f"{stem}.py", *flags, "--claim", "runs")
        ended = workspace.finished(name, seconds=300)
        printed = "".join(local.communicate(timeout=PATIENCE))
    finally:
        local.kill()
    assert local.returncode == 0, printed
    assert ended == "Succeeded", workspace.describe()

    logs = tool.folder / f"runs/{name}/logs"
    first = "chief-0" if (logs / "chief-0.log").exists() else "worker-0"
    lines, numbers = results((logs / f"{first}.log").read_text())
    their_lines, their_numbers = results(log(workspace, f"{name}-{first}"))
    assert lines
    assert their_lines == lines
    assert their_numbers == pytest.approx(numbers, *CLOSE)
    for written in sorted({path.name for path in tool.folder.iterdir()} - before):
        tool.run("cp", f"{name}:{written}", f"fetched-{written}")
