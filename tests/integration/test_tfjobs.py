"""TFJobs of every shape, converted by `tfgpu convert`, run to their end by a program without TensorFlow."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import yaml
from tests.integration.kube import Object
from tests.integration.workspace import Workspace

from tfgpujob import names
from tfgpujob.cli import main as cli
from tfgpujob.exits import Exit

HERE = Path(__file__).parent
TFJOBS = HERE.parent / "cases/tfjobs"
LEFT_AND_GONE: dict[str, tuple[set[str], set[str]]] = {
    "workers": ({"worker"}, set()),
    "parameter-servers": ({"chief"}, {"ps"}),
    "dynamic-workers": ({"worker"}, {"ps"}),
    "beta": (set(), {"chief", "worker", "ps"}),
    "alpha-2": ({"worker"}, set()),
}
"""Roles of which pods are left when the job has ended, and roles of which none is: the clean-up that each asks for."""


def stand_in(job: Object, image: str) -> Object:
    """The job with another image and program."""
    for replica in job["spec"]["replicaSpecs"].values():
        for container in replica["template"]["spec"]["containers"]:
            if container["name"] == names.CONTAINER:
                container.pop("args", None)
                container |= {"image": image, "command": ["python", "-c", (HERE / "stand_in.py").read_text()]}
    return job


def test_converted_tfjobs_run(workspace: Workspace, tmp_path: Path) -> None:
    assert cli.main(["convert", str(TFJOBS), "-d", str(tmp_path)]) == Exit.OK
    converted = [obj for file in tmp_path.glob("*.yaml") for obj in yaml.safe_load_all(file.read_text())]
    for obj in sorted(converted, key=lambda obj: obj["kind"]):
        made = stand_in(obj, workspace.image) if obj["kind"] == names.KIND else obj
        workspace.kube.create(obj["kind"], workspace.namespace, made)
    jobs = {obj["metadata"]["name"] for obj in converted if obj["kind"] == names.KIND}
    assert jobs == set(LEFT_AND_GONE)
    for job in jobs:
        assert workspace.finished(job) == "Succeeded", workspace.describe()
        workspace.eventually(partial(is_cleaned_up, workspace, job), f"{job} is cleaned up")
    for index in range(3):
        workspace.eventually(partial(has_met_its_peers, workspace, f"workers-worker-{index}"), f"worker {index} ended")


def has_met_its_peers(workspace: Workspace, pod: str) -> bool:
    return "spoke with 2 peers" in workspace.kube.log(workspace.namespace, pod, names.CONTAINER)


def is_cleaned_up(workspace: Workspace, job: str) -> bool:
    left, gone = LEFT_AND_GONE[job]
    roles = {pod["metadata"]["labels"]["tfgpu.dev/replica-type"] for pod in workspace.pods(job).values()}
    return left <= roles and not gone & roles
