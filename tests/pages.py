"""The commands in ```sh blocks of the pages, and the test that runs each.

tests/unit/docs/test_commands.py fails for a command that is in neither table, and for a line that no page needs.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TUTORIAL = ROOT / "docs/tutorial.md"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)

HERE = "tests/trainer/test_local.py"
SCRIPTS = "tests/trainer/test_scripts.py"
DIVIDED = "tests/trainer/test_divided_scripts.py"
ADVISE = "tests/trainer/test_advise.py"
LEARNING_RATES = "tests/trainer/test_learning_rates.py"
CONVERT = "tests/unit/cli/test_convert.py"
CLUSTER = "tests/integration/test_cli.py"
ELASTIC = "tests/integration/test_elastic.py"
SIGNING = "tests/unit/release/test_signing.py"

TYPED_BY = {
    "tfgpu run examples/scripts/timeseries.py --local --workers 2": HERE,
    "tfgpu run examples/digits-multiworker.yaml --local": HERE,
    "tfgpu explain examples/digits-multiworker.yaml": HERE,
    "ls runs/digits": HERE,
    "tfgpu run examples/digits-checkpointed.yaml --local": HERE,
    "tfgpu run examples/predict.yaml --local": HERE,
    "tfgpu explain train.yaml": HERE,
    "tfgpu run train.yaml --local": HERE,
    "tfgpu run train.py --local --workers 2": SCRIPTS,
    "tfgpu run train.py --local --workers 2 --fresh -- --epochs 5": SCRIPTS,
    "tfgpu run larger.py --local --gpus 4": DIVIDED,
    "tfgpu run larger.py --local --workers 2 --gpus 2": DIVIDED,
    "python -m tfgpujob_trainer.advise --config trainer.json --processes 1 2 4": ADVISE,
    "python -m tfgpujob_trainer.advise --config trainer.json --workers 8 --bandwidth 25": ADVISE,
    "python -m tfgpujob_trainer.advise --config trainer.json --learning-rates 1e-5 10": LEARNING_RATES,
    "tfgpu convert old-jobs/ -d new-jobs/": CONVERT,
    "tfgpu convert tfjob.yaml --strategy MultiWorkerMirrored": CONVERT,
    "kubectl apply -f examples/digits-multiworker.yaml": CLUSTER,
    "kubectl get tfj": CLUSTER,
    "tfgpu logs digits -f": CLUSTER,
    "kubectl wait --for=condition=Finished tfj/digits": CLUSTER,
    "tfgpu describe digits": CLUSTER,
    "tfgpu submit train.py --workers 2 --batch 128 --epochs 20 --param units=32 --dry-run": CLUSTER,
    "tfgpu submit train.py --workers 2 --batch 128 --epochs 20 --param units=32": CLUSTER,
    "tfgpu list": CLUSTER,
    "tfgpu suspend train": CLUSTER,
    "tfgpu resume train": CLUSTER,
    "tfgpu logs train -f": CLUSTER,
    "tfgpu wait train --timeout 600": CLUSTER,
    "tfgpu describe train": CLUSTER,
    "tfgpu restart train": CLUSTER,
    "tfgpu delete train": CLUSTER,
    "tfgpu submit examples/elastic.yaml": ELASTIC,
    "tfgpu scale elastic --workers 4": ELASTIC,
    "kubectl scale tfj elastic --replicas 1": ELASTIC,
    "tfgpu describe elastic": ELASTIC,
    "tfgpu delete elastic": ELASTIC,
    "echo release $(cat release-key.pub) > signers": SIGNING,
    "ssh-keygen -Y verify -f signers -I release -n tfgpujob -s SHA256SUMS.sig < SHA256SUMS": SIGNING,
    "sha256sum --check SHA256SUMS": SIGNING,
}
"""The test that runs the command as it stands."""

_INSTALLS = "downloads 2 GB; tests/unit/cli/test_package.py checks what the extras bring"
_MEMORY = "fills the memory; tests/trainer/test_advise.py pretends what it measures"
_DOCKER = "needs Docker and a registry; localcluster.release builds both Dockerfiles for every integration test"
_RELEASE = "needs a release and a registry; tests/integration/test_release.py pushes to one of its own"
_HELM = "needs the helm command; tests/integration/session.py installs the chart by helm or by Helm's library"

_LOOP = "stands for a program of the reader's; tests/trainer/test_loops.py runs loops by this command"
_LOOP_SUBMITTED = "as above; tests/integration/test_examples.py submits such programs"

NOT_TYPED = {
    "tfgpu run loop.py --local --workers 2": _LOOP,
    "tfgpu submit loop.py --workers 2 --claim NAME": _LOOP_SUBMITTED,
    "python -m tfgpujob_trainer.advise --config trainer.json --batch": _MEMORY,
    "python3 -m venv venv": _INSTALLS,
    ". venv/bin/activate": _INSTALLS,
    "pip install './operator[local]' ./trainer_image ./trainer_image/src/tfgpujob_contract": _INSTALLS,
    "docker build -t registry.example.com/tfgpujob-operator:0.1.0 .": _DOCKER,
    "docker build -t registry.example.com/tfgpujob-trainer:0.1.0 -f trainer_image/Dockerfile .": _DOCKER,
    "docker push registry.example.com/tfgpujob-operator:0.1.0": _DOCKER,
    "docker push registry.example.com/tfgpujob-trainer:0.1.0": _DOCKER,
    "helm install tfgpu charts/tfgpujob --namespace tfgpu-system --create-namespace "
    "--set image.repository=registry.example.com/tfgpujob-operator "
    "--set trainerImage.repository=registry.example.com/tfgpujob-trainer --wait": _HELM,
    "helm install tfgpu charts/tfgpujob --namespace team-a --set 'watchNamespaces={team-a,team-b}' "
    "--set rbac.aggregateToDefaultRoles=false": _HELM,
    "helm upgrade tfgpu charts/tfgpujob --namespace tfgpu-system --reset-then-reuse-values --wait": _HELM,
    "helm test tfgpu --namespace tfgpu-system": _HELM,
    "helm uninstall tfgpu --namespace tfgpu-system": _HELM,
    "docker load --input build/release/0.2.0/tfgpujob-operator-0.2.0.tar": _RELEASE,
    "docker push registry.example.com/ml/tfgpujob-operator:0.2.0": _RELEASE,
    "helm push build/release/0.2.0/tfgpujob-0.2.0.tgz oci://registry.example.com/ml/charts": _RELEASE,
    "helm install tfgpu oci://registry.example.com/ml/charts/tfgpujob --version 0.2.0 --namespace tfgpu-system "
    "--create-namespace --wait": _RELEASE,
    "kubectl apply --server-side -f build/release/0.2.0/install.yaml": _RELEASE,
    "kubectl --namespace tfgpu-system port-forward service/tfgpu-tfgpujob-ui 8687": _HELM,
    "make release VERSION=0.2.0 REGISTRY=registry.example.com/ml": "tests/unit/release/test_release.py makes one twice",
}
"""Why no test runs the command, and what does instead. `helm` values are checked in tests/unit/docs/test_docs.py."""


def commands(page: Path) -> list[str]:
    """One a line, without comments and without the folder of a virtual environment."""
    blocks = [text for language, text in FENCE.findall(page.read_text()) if language == "sh"]
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    plain = (re.sub(r"^venv/bin/", "", re.sub(r"\s+#.*", "", line)) for line in lines)
    return [" ".join(line.split()) for line in plain if line.strip()]


def files(page: Path) -> dict[str, str]:
    """What the page shows of files: the blocks that begin with a file's name as a comment."""
    blocks = (text for _, text in FENCE.findall(page.read_text()))
    named = (re.match(r"# ([\w.-]+\.(?:py|yaml))\n", text) for text in blocks)
    return {found[1]: found.string for found in named if found}


def typed_by(test: str) -> list[list[str]]:
    """The words of each command that the test file of this path has to run, in the order of the pages."""
    name = str(Path(test).relative_to(ROOT))
    found = dict.fromkeys(command for page in PAGES for command in commands(page))
    return [shlex.split(command) for command in found if TYPED_BY.get(command) == name]


def shell(folder: Path, **variables: str) -> dict[str, str]:
    """An environment in which `tfgpu` and `python` are those of this checkout; their place is made in the folder."""
    (folder / "bin").mkdir()
    for name, command in {"tfgpu": "-m tfgpujob.cli ", "python": ""}.items():
        script = folder / "bin" / name
        script.write_text(f'#!/bin/sh\nexec {sys.executable} {command}"$@"\n')
        script.chmod(0o755)
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("TF_", "TFGPU_"))}
    packages = f"{ROOT / 'operator/src'}:{ROOT / 'trainer_image/src'}"
    ours = {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": packages}
    return {**inherited, **ours, **variables}
