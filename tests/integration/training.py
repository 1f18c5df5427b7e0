"""Jobs of the real trainer that are slow enough to be caught while they train."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.integration.workspace import Workspace

MODULE = Path(__file__).with_name("slow_digits.py")
STEPS = 120
STEPS_AN_EPOCH = 12
NOBODY = "nobody"


def train(
    workspace: Workspace,
    name: str,
    pod: Mapping[str, Any],
    *,
    victim: str = NOBODY,
    mishap: str = "kill",
    **run_policy: Any,
) -> str:
    """Submits two real workers with checkpoints on a claim of their own; `pod`: further fields of their pods.

    The victim, the index of a worker as text, has the mishap ("kill" or "stall") at step 45 of its first start.
    """
    kube, namespace = workspace.kube, workspace.namespace
    if kube.find("ConfigMap", namespace, "code") is None:
        kube.create("ConfigMap", namespace, {"metadata": {"name": "code"}, "data": {"train.py": MODULE.read_text()}})
    claim = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    kube.create("PersistentVolumeClaim", namespace, {"metadata": {"name": name}, "spec": claim})
    env = [{"name": "VICTIM", "value": victim}, {"name": "MISHAP", "value": mishap}]
    containers = [{"name": "tensorflow", "env": env}]
    template = {"spec": {"terminationGracePeriodSeconds": 5, "containers": containers, **pod}}
    spec = {
        "strategy": "MultiWorkerMirrored",
        "replicaSpecs": {"worker": {"replicas": 2, "template": template}},
        "gpu": {"perReplica": 0},
        "runPolicy": {"backoffLimit": 1, **run_policy},
        "trainer": {
            "entrypoint": "train.py",
            "code": {"configMap": {"name": "code"}},
            "globalBatchSize": 128,
            "epochs": STEPS // STEPS_AN_EPOCH,
            "output": {"claim": name},
            "checkpoint": {"everySteps": 10},
        },
    }
    return workspace.submit({"metadata": {"name": name}, "spec": spec})


def log(workspace: Workspace, name: str) -> str:
    """What worker 0 has said; empty before its program has begun."""
    pod = workspace.pods(name).get(f"{name}-worker-0", {"status": {}})
    states = pod["status"].get("containerStatuses") or [{"state": {"waiting": {}}}]
    if "waiting" in states[0]["state"] or "deletionTimestamp" in pod["metadata"]:
        return ""
    return workspace.kube.log(workspace.namespace, f"{name}-worker-0", "tensorflow")


def steps_done(workspace: Workspace, name: str) -> int:
    """In whole epochs, as the pods that are there now have told."""
    epochs = re.findall(r"epoch (\d+)", log(workspace, name))
    return STEPS_AN_EPOCH * int(epochs[-1]) if epochs else 0


def digests(workspace: Workspace, name: str) -> set[str]:
    """Of the weights with which each worker has ended."""
    ends = [pod["status"]["containerStatuses"][0]["state"]["terminated"] for pod in workspace.pods(name).values()]
    return {json.loads(end["message"])["summary"]["weightsSha256"] for end in ends}
