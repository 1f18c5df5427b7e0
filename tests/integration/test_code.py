"""Code of a git repository and the packages that it requires, in real pods."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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
