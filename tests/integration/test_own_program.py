"""A hand-written loop on pods, resized while it trains."""

from __future__ import annotations

import json
import re
from functools import partial

from tests.integration import training
from tests.integration.kube import Object
from tests.integration.target import Target
from tests.integration.workspace import Workspace
from tests.pages import ROOT

STEPS = 20_000
"""As many as it takes one worker half a minute to do: it is resized before."""


def test_a_hand_written_loop_goes_on_with_other_workers_in_its_pods(workspace: Workspace, target: Target) -> None:
    """2 → 3 → 1 workers of examples/own_loop.py: one attempt, and no pod that stays is touched."""
    name = workspace.submit(_job(workspace, target.trainer_image))
    first = f"{name}-worker-0"
    workspace.eventually(lambda: training.steps_done(workspace, first) > 0, "it trains")
    stay = workspace.uids(name)[first]
    for resizes, workers in enumerate((3, 1), 1):
        workspace.edit(name, replicaSpecs={"worker": {"replicas": workers}})
        workspace.eventually(partial(_train, workspace, name, workers, resizes), f"{workers} train")
        assert workspace.uids(name)[first] == stay, workspace.describe()
    assert workspace.finished(name) == "Succeeded"
    status = workspace.status(name)
    assert (status["attempt"], status["resizes"], status["restarts"]) == (1, 2, 0), workspace.describe()
    steps = _resumed(workspace, first)
    assert 0 < steps[0] < steps[1] < STEPS
    assert training.steps_done(workspace, first) == STEPS
    ended = workspace.pods(name)[first]["status"]["containerStatuses"][0]["state"]["terminated"]
    assert json.loads(ended["message"])["cause"] == "Completed"


def _train(workspace: Workspace, name: str, workers: int, resizes: int) -> bool:
    """This many workers have continued from a checkpoint, and the status has the resize."""
    first = f"{name}-worker-0"
    begun = f"round {resizes} has {workers} worker" in training.log(workspace, first)
    known = workspace.status(name).get("resizes") == resizes and len(workspace.pods(name)) == workers
    return begun and known and len(_resumed(workspace, first)) == resizes


def _resumed(workspace: Workspace, pod: str) -> list[int]:
    """The steps after which its rounds went on."""
    return [int(step) for step in re.findall(r"resuming after step (\d+)", training.log(workspace, pod))]


def _job(workspace: Workspace, image: str) -> Object:
    kube, namespace, name = workspace.kube, workspace.namespace, "own-loop"
    program = {"own_loop.py": (ROOT / "examples/own_loop.py").read_text()}
    kube.create("ConfigMap", namespace, {"metadata": {"name": name}, "data": program})
    claim = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    kube.create("PersistentVolumeClaim", namespace, {"metadata": {"name": name}, "spec": claim})
    spec = {
        "strategy": "MultiWorkerMirrored",
        "image": image,
        "gpu": {"perReplica": 0},
        "runPolicy": {"recovery": "InPlace", "backoffLimit": 0},
        "replicaSpecs": {
            "worker": {"replicas": 2, "minReplicas": 1, "maxReplicas": 3, "template": {"spec": _pod(name)}}
        },
    }
    return {"metadata": {"name": name}, "spec": spec}


def _pod(name: str) -> Object:
    container = {
        "name": "tensorflow",
        "command": ["python", "/app/own_loop.py"],
        "env": [{"name": "STEPS", "value": str(STEPS)}],
        "volumeMounts": [{"name": "app", "mountPath": "/app"}, {"name": "output", "mountPath": "/output"}],
    }
    volumes = [
        {"name": "app", "configMap": {"name": name}},
        {"name": "output", "persistentVolumeClaim": {"claimName": name}},
    ]
    return {"containers": [container], "volumes": volumes, "securityContext": {"fsGroup": 65532}}
