"""Code of a git repository and the packages that it requires, in real pods."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from tests.integration.kube import Object
from tests.integration.target import Target
from tests.integration.workspace import Workspace

SERVER = Path(__file__).with_name("git_server.py")
PORT = 8000


def test_two_workers_train_one_commit_with_the_packages_that_it_requires(workspace: Workspace, target: Target) -> None:
    url, commit = serve_code(workspace, target.trainer_image)
    code = {"git": {"url": url, "revision": commit}}
    requirements = ["--no-index", "--find-links wheels", "tinyone"]
    job = workspace.submit(trained(target, "from-git", "MultiWorkerMirrored", 2, code=code, requirements=requirements))
    assert workspace.finished(job, seconds=180) == "Succeeded", workspace.describe()
    for pod in workspace.pods(job):
        assert "tinyone 1.0" in workspace.kube.log(workspace.namespace, pod, "tensorflow").splitlines()


def test_a_commit_that_is_not_there_ends_the_job_and_says_which_field(workspace: Workspace, target: Target) -> None:
    url, _ = serve_code(workspace, target.trainer_image)
    code = {"git": {"url": url, "revision": "0" * 40}}
    job = workspace.submit(trained(target, "no-commit", "OneDevice", 1, code=code))
    assert workspace.finished(job, seconds=120) == "Failed", workspace.describe()
    assert "spec.trainer.code.git.revision" in workspace.status(job)["lastFailure"]["message"]


PROGRAM = """
from pathlib import Path
import keras, numpy
print("read", Path("/models/word.txt").read_text())
model = keras.Sequential([keras.layers.Dense(1)])
model.compile(loss="mse")
model.fit(numpy.ones((8, 1)), numpy.ones((8, 1)), batch_size=8, epochs=1)
"""


@pytest.mark.smoke
def test_code_and_models_come_from_images(workspace: Workspace, target: Target, tmp_path: Path) -> None:
    """The image says nothing of a user, so that it would run as root; its folders are root's."""
    if os.environ.get("TFGPU_CLUSTER") == "existing":
        pytest.skip("the cluster can't be given an image from here")
    image = "localhost/tfgpujob-code-and-models:test"
    for folder, file, text in (("code", "train.py", PROGRAM), ("models", "word.txt", "seventeen")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / file).write_text(text)
    lines = [f"FROM {target.operator_image}", "USER 0", "COPY code /code", "COPY models /models"]
    (tmp_path / "Dockerfile").write_text("\n".join(lines))
    target.cluster.load_image(image, tmp_path / "Dockerfile", tmp_path, {})
    parts = {"code": {"image": image}, "models": {"image": image}}
    job = workspace.submit(trained(target, "from-images", "OneDevice", 1, **parts))
    assert workspace.finished(job, seconds=180) == "Succeeded", workspace.describe()
    (pod,) = workspace.pods(job)
    assert "read seventeen" in workspace.kube.log(workspace.namespace, pod, "tensorflow").splitlines()
    if not workspace.status(job)["plan"].get("imageVolumes"):
        digests = workspace.status(job)["digests"]
        assert digests["code"] == digests["models"]
        assert len(digests["code"]) == 1


def trained(target: Target, name: str, strategy: str, workers: int, **trainer: Any) -> Object:
    """A job of the script, on no GPUs."""
    spec = {
        "strategy": strategy,
        "image": target.trainer_image,
        "gpu": {"perReplica": 0},
        "replicaSpecs": {"worker": {"replicas": workers}},
        "trainer": {"entrypoint": "train.py", **trainer},
    }
    return {"metadata": {"name": name}, "spec": spec}


def serve_code(workspace: Workspace, image: str) -> tuple[str, str]:
    """The URL of a repository in a pod, and its commit."""
    kube, namespace = workspace.kube, workspace.namespace
    workspace.add_pod("git", {"name": "git", "image": image, "command": ["python", "-c", SERVER.read_text()]})

    def said() -> list[str]:
        phase = kube.get("Pod", namespace, "git")["status"].get("phase")
        return kube.log(namespace, "git", "git").split() if phase == "Running" else []

    commit = workspace.eventually(said, "the git server says its commit", seconds=120)[-1]
    address = kube.get("Pod", namespace, "git")["status"]["podIP"]
    return f"http://{address}:{PORT}/code.git", commit
