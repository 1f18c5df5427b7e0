"""Jobs of the real trainer that are slow enough to be caught while they train."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.integration.kube import Object
from tests.integration.workspace import Workspace
from tests.machine import slowness

from tfgpujob.core.status.builder import moment
from tfgpujob_contract.goodput import PARTS

MODULE = Path(__file__).with_name("slow_digits.py")
STEPS = 120
STEPS_AN_EPOCH = 12
SERVED_STEPS = 120 * STEPS_AN_EPOCH
SLOWEST = 4.0
"""The most by which the pace of a training gives way to a busy machine: it must come to its end when that is quiet."""
LAST_LINES = 100
"""Last lines of a log that are searched for repeated messages."""
NOBODY = "nobody"
KILL = "kill -9 $(cat /proc/1/task/1/children)"
"""In a pod: the end of the training process, whose supervisor is process 1."""
KILL_FORK = "kill -9 $(for warm in $(cat /proc/1/task/1/children); do cat /proc/$warm/task/$warm/children; done)"
"""The same where it is a fork of the supervisor's warm process."""
RESUMED = "resuming after step"
"""Printed by a training process that continues from a checkpoint."""


def train(
    workspace: Workspace,
    name: str,
    pod: Mapping[str, Any],
    *,
    victim: str = NOBODY,
    mishap: str = "kill",
    steps: int = STEPS,
    **run_policy: Any,
) -> str:
    """Submits two real workers with checkpoints on a claim of their own; `pod`: further fields of their pods.

    The victim, the index of a worker as text, has the mishap that slow_digits.py knows by that name.
    """
    roles = {"worker": {"replicas": 2, "pod": pod}}
    job = new_trainer(workspace, name, roles, steps=steps, victim=victim, mishap=mishap)
    job["spec"]["runPolicy"] |= run_policy
    return workspace.submit(job)


def serve(workspace: Workspace, name: str, roles: Mapping[str, Mapping[str, Any]], **run_policy: Any) -> str:
    """Submits a ParameterServer job of two workers, which rests after each epoch until it has `enough`.

    `roles`: pod fields of each role. Left to itself it ends after six minutes of a quiet machine.
    """
    counted = {role: {"replicas": 2 if role == "worker" else 1, "pod": pod} for role, pod in roles.items()}
    job = new_trainer(workspace, name, counted, steps=SERVED_STEPS)
    job["spec"] |= {"strategy": "ParameterServer", "runPolicy": run_policy}
    job["spec"]["trainer"]["checkpoint"] = {"everyEpochs": 1}
    return workspace.submit(job)


def enough(workspace: Workspace, pod: str) -> None:
    """Lets the job of this pod train at full speed."""
    workspace.run_in(pod, "touch /output/enough")


def new_trainer(
    workspace: Workspace,
    name: str,
    roles: Mapping[str, Mapping[str, Any]],
    *,
    steps: int = STEPS_AN_EPOCH,
    victim: str = NOBODY,
    mishap: str = "kill",
    paced: str = "training",
    pace: float = 0.1,
) -> Object:
    """A job of slow_digits.py that may fail once, and the claim of its output, which is made.

    `roles`: replicas and pod fields of each role. `pace`: seconds a step on a quiet machine, until it has `enough`.
    """
    kube, namespace = workspace.kube, workspace.namespace
    if kube.find("ConfigMap", namespace, "code") is None:
        kube.create("ConfigMap", namespace, {"metadata": {"name": "code"}, "data": {"train.py": MODULE.read_text()}})
    claim = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    kube.create("PersistentVolumeClaim", namespace, {"metadata": {"name": name}, "spec": claim})
    told = {"VICTIM": victim, "MISHAP": mishap, "PACED": paced, "PACE": str(pace)}
    told["SLOWNESS"] = str(min(slowness(), SLOWEST))
    env = [{"name": key, "value": value} for key, value in told.items()]
    replica_specs = {}
    for role, fields in roles.items():
        container = {"name": "tensorflow", "env": env}
        pod = {"terminationGracePeriodSeconds": 5, "containers": [container], **fields.get("pod", {})}
        replica_specs[role] = {"replicas": fields["replicas"], "template": {"spec": pod}}
    spec = {
        "strategy": "MultiWorkerMirrored",
        "replicaSpecs": replica_specs,
        "gpu": {"perReplica": 0},
        "runPolicy": {"backoffLimit": 1},
        "trainer": {
            "entrypoint": "train.py",
            "code": {"configMap": {"name": "code"}},
            "globalBatchSize": 128,
            "epochs": steps // STEPS_AN_EPOCH,
            "logEverySeconds": 1,
            "output": {"claim": name},
            "checkpoint": {"everySteps": 10},
        },
    }
    return {"metadata": {"name": name}, "spec": spec}


def kill_process(workspace: Workspace, victim: str, pod: str, words: str, then: str = "") -> None:
    """The victim's training process, and wait until the pod's log has these words once more, and `then` after them."""
    times = log(workspace, pod).count(words)
    workspace.run_in(victim, KILL_FORK)

    def is_back() -> bool:
        text = log(workspace, pod)
        return text.count(words) > times and then in text.rpartition(words)[2]

    workspace.eventually(is_back, f"{victim} is back")


def log(workspace: Workspace, pod: str, lines: int | None = None) -> str:
    """The log of the trainer in this pod, or its last `lines` lines; empty before its program has started."""
    found = workspace.kube.find("Pod", workspace.namespace, pod)
    if found is None or "deletionTimestamp" in found["metadata"]:
        return ""
    states = found["status"].get("containerStatuses") or [{"state": {"waiting": {}}}]
    return (
        ""
        if "waiting" in states[0]["state"]
        else workspace.kube.log(workspace.namespace, pod, "tensorflow", lines=lines)
    )


def steps_done(workspace: Workspace, pod: str) -> int:
    """As the pod of that name that is there now has told."""
    told = re.findall(r'"tfgpu": "progress".*"step": (\d+)', log(workspace, pod, LAST_LINES))
    return int(told[-1]) if told else 0


def digests(workspace: Workspace, name: str) -> set[str]:
    """Digests of the weights with which the workers have ended."""
    return {summary(pod)["weightsSha256"] for pod in workspace.pods(name).values()}


def summary(pod: Object) -> Object:
    """What the trainer left in its termination message."""
    container = next(c for c in pod["status"]["containerStatuses"] if c["name"] == "tensorflow")
    found: Object = json.loads(container["state"]["terminated"]["message"])["summary"]
    return found


def account(workspace: Workspace, name: str) -> dict[str, int]:
    """Seconds of a finished job by what they went into; they sum to its whole time, within 1 %."""
    goodput, whole = workspace.status(name)["goodput"], whole_seconds(workspace, name)
    parts = {key: value for key, value in goodput.items() if key in PARTS}
    assert abs(sum(parts.values()) - whole) <= 0.01 * whole, (goodput, whole)
    return parts


def whole_seconds(workspace: Workspace, name: str) -> float:
    """From the creation of a finished job to its end."""
    job = workspace.kube.get("TFGPUJob", workspace.namespace, name)
    whole = moment(job["status"]["completionTime"]) - moment(job["metadata"]["creationTimestamp"])
    return whole.total_seconds()
