"""The examples with the real trainer: TensorFlow in real pods, trained to the end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from tests.integration.kube import Kube, Object
from tests.integration.training import summary
from tests.integration.workspace import Workspace

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def example(name: str, kube: Kube) -> Object:
    """The TFGPUJob of a file of examples/, without GPUs where no node has any."""
    documents = yaml.safe_load_all((EXAMPLES / name).read_text())
    job: Object = next(document for document in documents if document["kind"] == "TFGPUJob")
    if not kube.has_gpus():
        job["spec"].setdefault("gpu", {})["perReplica"] = 0
    return job


def environment(pod: Object) -> dict[str, str]:
    container = next(c for c in pod["spec"]["containers"] if c["name"] == "tensorflow")
    return {variable["name"]: variable.get("value", "") for variable in container["env"]}


def test_two_workers_train_digits_to_the_same_weights_and_leave_nothing_behind(workspace: Workspace) -> None:
    """examples/digits-multiworker.yaml: accuracy ≥ 0.95, equal weights, TF_CONFIGs that are equal but for the task."""
    job = workspace.submit(example("digits-multiworker.yaml", workspace.kube))
    assert workspace.finished(job, seconds=180) == "Succeeded", workspace.describe()
    pods = workspace.pods(job)
    assert sorted(pods) == ["digits-worker-0", "digits-worker-1"]

    summaries = [summary(pods[name]) for name in sorted(pods)]
    assert summaries[0]["splits"]["test"]["accuracy"] >= 0.95
    assert summaries[0]["weightsSha256"] == summaries[1]["weightsSha256"]

    configs = [json.loads(environment(pods[name])["TF_CONFIG"]) for name in sorted(pods)]
    assert [config.pop("task") for config in configs] == [
        {"type": "worker", "index": 0},
        {"type": "worker", "index": 1},
    ]
    assert configs[0] == configs[1]
    where = f"digits.{workspace.namespace}.svc:2222"
    assert configs[0] == {"cluster": {"worker": [f"digits-worker-0.{where}", f"digits-worker-1.{where}"]}}

    assert workspace.kube.find("Service", workspace.namespace, job) is not None
    workspace.delete(job)

    def gone() -> bool:
        service = workspace.kube.find("Service", workspace.namespace, job)
        return not workspace.pods(job) and service is None

    workspace.eventually(gone, "no pod and no service left of the deleted job")


@pytest.mark.parametrize("strategy", ["OneDevice", "Mirrored"])
def test_one_worker_trains_digits_without_tf_config(workspace: Workspace, strategy: str) -> None:
    job = example("digits-multiworker.yaml", workspace.kube)
    job["spec"] |= {"strategy": strategy, "replicaSpecs": {"worker": {}}}
    job["spec"]["trainer"]["epochs"] = 3
    name = workspace.submit(job)
    assert workspace.finished(name) == "Succeeded", workspace.describe()
    pod = workspace.pods(name)["digits-worker-0"]
    assert "TF_CONFIG" not in environment(pod)
    assert summary(pod)["epochs"] == 3


def test_a_trainer_that_cannot_find_its_module_says_so_in_the_status(workspace: Workspace) -> None:
    """Exit code 2 is permanent: no restart, and lastFailure has the trainer's own words."""
    job = example("digits-multiworker.yaml", workspace.kube)
    job["spec"] |= {"strategy": "OneDevice", "replicaSpecs": {"worker": {}}}
    job["spec"]["trainer"]["entrypoint"] = "digitz"
    name = workspace.submit(job)
    assert workspace.finished(name) == "Failed"
    status = workspace.status(name)
    assert status["lastFailure"]["exitCode"] == 2
    assert "digitz" in status["lastFailure"]["message"]
    assert status.get("restarts", 0) == 0
