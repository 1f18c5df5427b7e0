"""`tfgpu` as people type it, on a real cluster: what its tests on a server in memory say is true of a real one."""

from __future__ import annotations

import json
import shutil

import yaml
from tests.integration.tool import Tool
from tests.integration.workspace import RUN_ON
from tests.machine import PATIENCE
from tests.pages import ROOT, TUTORIAL, files, typed_by

from tfgpujob.exits import Exit

SPEAK_AND_RUN_ON = f"print('I speak', flush=True); {RUN_ON}"


def test_a_job_from_submit_to_delete(tool: Tool) -> None:
    tool.submit("typed", SPEAK_AND_RUN_ON)
    assert tool.run("wait", "typed", "--for", "Running", "--timeout", str(PATIENCE)) == "typed is Running\n"
    listed = json.loads(tool.run("list", "-o", "json"))
    assert [job["metadata"]["name"] for job in listed["items"]] == ["typed"]
    assert "2/2" in tool.run("get", "typed")
    assert sorted(tool.run("logs", "typed").splitlines()) == ["worker-0 | I speak", "worker-1 | I speak"]
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


def test_the_readme_and_the_tutorial_as_they_are_typed(tool: Tool) -> None:
    """Every command of their parts for a cluster, on the files that they show, with the trainer's image."""
    (tool.folder / "examples").symlink_to(ROOT / "examples")
    (tool.folder / "train.py").write_text(files(TUTORIAL)["train.py"])
    printed = {}
    for words in typed_by(__file__):
        if shutil.which(words[0]) or words[0] == "tfgpu":
            printed[" ".join(words)] = tool.type(*words)
    for name in ("digits", "train"):
        assert "epoch 20/20" in printed[f"tfgpu logs {name} -f"]
        assert "Succeeded, 2/2" in printed[f"tfgpu describe {name}"]
    [dry] = [printed[command] for command in printed if command.endswith("--dry-run")]
    code, job = yaml.safe_load_all(dry)
    assert (code["kind"], code["immutable"]) == ("ConfigMap", True)
    shown = yaml.safe_load(files(TUTORIAL)["train.yaml"])
    plain, digest = shown["spec"]["trainer"]["code"]["configMap"], code["metadata"]["name"]
    assert digest.startswith(f"{plain['name']}-")
    plain["name"] = digest
    assert job == shown
    assert "not found" in tool.run("get", "train", code=Exit.NOT_FOUND)
