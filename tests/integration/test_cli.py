"""`tfgpu` as people type it, on a real cluster: what its tests on a server in memory say is true of a real one."""

from __future__ import annotations

import json
from typing import Any
from unittest.mock import ANY

import pytest
import yaml
from tests.integration.kube import path_of
from tests.integration.tool import Tool
from tests.integration.training import summary
from tests.integration.workspace import RUN_ON, Workspace
from tests.machine import PATIENCE
from tests.pages import ROOT, TUTORIAL, files, typed_by

from tfgpujob.exits import Exit

LOOK_AROUND = f"""
import json, os, socket
def mount(path):
    return next((line.split()[2] for line in open("/proc/mounts") if line.split()[1] == path), None)
space = os.statvfs("/dev/shm")
print(json.dumps({{
    "shm": mount("/dev/shm"), "shm_bytes": space.f_frsize * space.f_blocks,
    "token": os.path.exists("/var/run/secrets/kubernetes.io/serviceaccount/token"),
    "hostname": socket.gethostname(),
    "own_address": socket.gethostbyname(f"{{socket.gethostname()}}.{{os.environ['TFGPU_JOB']}}"),
    "host_name_address": socket.gethostbyname(socket.gethostname()),
}}), flush=True)
{RUN_ON}
"""
"""Prints what only a real container shows, and runs on."""


@pytest.mark.smoke
def test_a_job_from_submit_to_delete(tool: Tool) -> None:
    """What kubectl shows of it and what its pods are like, besides: /dev/shm is memory and larger than the runtime's
    64 MiB, and the pod's own name resolves to it by the service."""
    tool.submit("typed", LOOK_AROUND)
    assert tool.run("wait", "typed", "--for", "Running", "--timeout", str(PATIENCE)) == "typed is Running\n"
    listed = json.loads(tool.run("list", "-o", "json"))
    assert [job["metadata"]["name"] for job in listed["items"]] == ["typed"]
    assert "2/2" in tool.run("get", "typed")
    assert row_of_kubectl(tool.workspace) == {
        **dict.fromkeys(("Name", "Phase", "Ready", "Strategy", "Percent", "Restarts", "Accepted", "Age"), ANY),
        "Name": "typed",
        "Phase": "Running",
        "Ready": "2/2",
        "Strategy": "MultiWorkerMirrored",
        "Accepted": "True",
    }
    for line in tool.run("logs", "typed").splitlines():
        pod, _, said = line.partition(" | ")
        seen = json.loads(said)
        assert (seen["shm"], seen["token"], seen["hostname"]) == ("tmpfs", False, f"typed-{pod}")
        assert seen["shm_bytes"] > 64 * 2**20
        assert seen["own_address"] == seen["host_name_address"]
    assert tool.run("describe", "typed").splitlines()[0].endswith("/typed: Running, 2/2 ready")

    tool.run("suspend", "typed")
    tool.run("wait", "typed", "--for", "Suspended", "--timeout", str(PATIENCE))
    tool.run("resume", "typed")
    tool.run("wait", "typed", "--for", "Running", "--timeout", str(PATIENCE))
    before = tool.workspace.uids("typed")
    tool.run("restart", "typed", "--timeout", str(PATIENCE))
    tool.run("wait", "typed", "--for", "Running", "--timeout", str(PATIENCE))
    assert not set(before.values()) & set(tool.workspace.uids("typed").values())

    tool.run("delete", "typed")
    assert "not found" in tool.run("get", "typed", code=Exit.NOT_FOUND)


def row_of_kubectl(workspace: Workspace) -> dict[str, Any]:
    """The only job as `kubectl get` shows it: the API server renders it."""
    accept = "application/json;as=Table;g=meta.k8s.io;v=v1"
    table = json.loads(workspace.kube.text("GET", path_of("TFGPUJob", workspace.namespace), accept=accept))
    [row] = table["rows"]
    shown = zip(table["columnDefinitions"], row["cells"], strict=True)
    return {column["name"]: cell for column, cell in shown if column["priority"] == 0}


def test_logs_are_followed_from_attempt_to_attempt_until_the_end(tool: Tool) -> None:
    """The first attempt is killed by a signal, which is tried again; the second ends well."""
    program = (
        "import os, sys; attempt = os.environ['TFGPU_ATTEMPT']; print('attempt', attempt, flush=True); "
        "sys.exit(137 if attempt == '1' else 0)"
    )
    tool.submit("twice", program, replicas=1)
    following = tool.start("tfgpu", "logs", "twice", "--follow")
    out, err = following.communicate(timeout=PATIENCE)
    assert following.returncode == Exit.OK, err
    said = [line.split("| ")[1] for line in out.splitlines() if "attempt" in line]
    assert said[-1] == "attempt 2"
    assert set(said) <= {"attempt 1", "attempt 2"}


def test_a_job_that_fails_says_why_on_its_first_screen(tool: Tool) -> None:
    tool.submit("bad", "raise ValueError('no such column')")
    tool.run("wait", "bad", "--timeout", str(PATIENCE), code=Exit.JOB_FAILED)
    screen = "\n".join(tool.run("describe", "bad").splitlines()[:24])
    assert "Failed" in screen
    assert "no such column" in screen
    assert "Next" in screen


def test_a_refused_job_is_refused_in_one_line(tool: Tool) -> None:
    job = tool.workspace.new_job("wrong", strategy="Mirrored")
    (tool.folder / "wrong.yaml").write_text(
        yaml.safe_dump({"apiVersion": "tfgpu.dev/v1alpha1", "kind": "TFGPUJob", **job})
    )
    refused = tool.run("submit", "wrong.yaml", code=Exit.USAGE)
    assert refused.startswith("tfgpu: ")
    assert "spec.replicaSpecs.worker.replicas" in refused


TYPED = typed_by(__file__)
OF_README = TYPED[: TYPED.index(["tfgpu", "describe", "digits"]) + 1]
OF_TUTORIAL = TYPED[len(OF_README) :]


@pytest.mark.smoke
def test_the_readme_as_it_is_typed(tool: Tool) -> None:
    """Two workers train digits to the same weights, and leave nothing behind."""
    workspace = tool.workspace
    (tool.folder / "examples").symlink_to(ROOT / "examples")
    printed = {" ".join(words): tool.type(*words) for words in OF_README}
    assert "epoch 20/20" in printed["tfgpu logs digits -f"]
    assert "Succeeded, 2/2" in printed["tfgpu describe digits"]
    pods = [workspace.pods("digits")[f"digits-worker-{index}"] for index in range(2)]
    summaries = [summary(pod) for pod in pods]
    assert summaries[0]["splits"]["test"]["accuracy"] >= 0.95
    assert summaries[0]["weightsSha256"] == summaries[1]["weightsSha256"]
    workspace.delete("digits")
    workspace.eventually(lambda: not workspace.pods("digits"), "no pod is left of the deleted job")
    workspace.eventually(lambda: not workspace.kube.list("Service", workspace.namespace), "nor its service")


def test_the_tutorial_as_it_is_typed(tool: Tool) -> None:
    """Every command of its part for a cluster, on the files that it shows, with the trainer's image."""
    (tool.folder / "train.py").write_text(files(TUTORIAL)["train.py"])
    printed = {" ".join(words): tool.type(*words) for words in OF_TUTORIAL}
    assert "epoch 20/20" in printed["tfgpu logs train -f"]
    assert "Succeeded, 2/2" in printed["tfgpu describe train"]
    [dry] = [printed[command] for command in printed if command.endswith("--dry-run")]
    code, job = yaml.safe_load_all(dry)
    assert (code["kind"], code["immutable"]) == ("ConfigMap", True)
    shown = yaml.safe_load(files(TUTORIAL)["train.yaml"])
    plain, digest = shown["spec"]["trainer"]["code"]["configMap"], code["metadata"]["name"]
    assert digest.startswith(f"{plain['name']}-")
    plain["name"] = digest
    assert job == shown
    assert "not found" in tool.run("get", "train", code=Exit.NOT_FOUND)
