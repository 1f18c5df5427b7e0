"""What people see of a job while it trains, with the real trainer: its curves, what it uses, what it has cost."""

from __future__ import annotations

import json
import re
import signal
import urllib.request
from pathlib import Path

import yaml
from tests.integration.kube import Object
from tests.integration.tool import Tool
from tests.machine import PATIENCE

from tfgpujob.exits import Exit

EXAMPLE = Path(__file__).resolve().parents[2] / "examples/digits-checkpointed.yaml"


def endless(tool: Tool) -> Object:
    """The example with one worker, without an end."""
    claim, job = yaml.safe_load_all(EXAMPLE.read_text())
    job["spec"] |= {"strategy": "OneDevice", "replicaSpecs": {"worker": {}}}
    job["spec"]["trainer"] |= {"epochs": 1_000_000, "logEverySeconds": 1}
    if not tool.workspace.kube.has_gpus():
        job["spec"]["gpu"] = {"perReplica": 0}
    (tool.folder / "job.yaml").write_text(yaml.safe_dump_all([claim, job]))
    return job  # type: ignore[no-any-return]


def test_curves_use_and_cost_of_a_job_that_trains(tool: Tool) -> None:
    job = endless(tool)
    name = job["metadata"]["name"]
    tool.run("submit", "job.yaml")
    tool.run("wait", name, "--for", "Running", "--timeout", str(PATIENCE))

    looking = tool.start("tfgpu", "tensorboard", name, "--port", "0")
    assert looking.stdout is not None
    url = re.findall(r"http://[\d.:]+", looking.stdout.readline())
    assert url, looking.communicate()
    with urllib.request.urlopen(url[0], timeout=PATIENCE) as page:
        assert page.status == 200
        assert b"TensorBoard" in page.read()

    def tags() -> list[str]:
        with urllib.request.urlopen(f"{url[0]}/data/plugin/scalars/tags", timeout=PATIENCE) as answer:
            return json.loads(answer.read()).get("train", [])  # type: ignore[no-any-return]

    tool.workspace.eventually(lambda: "loss" in tags(), "the curve of the loss")
    assert f"{name}-tensorboard" in " ".join(pod["metadata"]["name"] for pod in viewers(tool))
    looking.send_signal(signal.SIGTERM)
    assert looking.wait(PATIENCE) == Exit.TERMINATED
    tool.workspace.eventually(lambda: not viewers(tool), "the pod of TensorBoard goes with who looked")

    def steps() -> list[str]:
        return re.findall(r"^worker-0 +ready .* \d+/\d+ +[\d.]+ ms", tool.run("top", name), re.MULTILINE)

    tool.workspace.eventually(steps, "the steps of the replica, through the API server")
    assert "not known: CPU and memory: this cluster has no metrics API" in tool.run("top", name)
    if "gpu" not in job["spec"]:
        assert "GPU-hours" in tool.run("describe", name)
        assert tool.workspace.status(name)["gpuTime"]["gpus"] == 1
    tool.run("delete", name)


def viewers(tool: Tool) -> list[Object]:
    selector = "app.kubernetes.io/name=tensorboard"
    return tool.workspace.kube.list("Pod", tool.workspace.namespace, labelSelector=selector)
