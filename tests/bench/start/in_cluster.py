"""Starts on the cluster that is up: a job, and two pods made by hand. The nodes have the image."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from tests.bench.start.here import BY_HAND, JOB, PROGRESS, STEPS
from tests.bench.start.moments import of_ledger, since
from tests.integration.conftest import new_workspace
from tests.integration.installed import Installation
from tests.integration.kube import Kube, Object
from tests.integration.session import Session
from tests.integration.workspace import Workspace

from tfgpujob import names
from tfgpujob.core.status.builder import moment
from tfgpujob_contract.pod import PROGRESS_PORT, PROGRESS_TOKEN_HEADER
from tfgpujob_contract.variables import Variable

_ASK = (
    "import os, urllib.request as r; print(r.urlopen(r.Request('http://127.0.0.1:"
    f"{PROGRESS_PORT}/progress', headers={{'{PROGRESS_TOKEN_HEADER}': "
    f"os.environ['{Variable.PROGRESS_TOKEN}']}})).read().decode())"
)
_SECONDS = 600.0
_EVERY = 1.0


@contextmanager
def on_cluster(folder: Path) -> Iterator[tuple[Workspace, str]]:
    """A namespace of the cluster with this checkout's operator, and the trainer's image."""
    session = Session(folder)
    found = session.target()
    kube = Kube(found.kubeconfig)
    operator = Installation.on(kube, found, folder)
    with session.operator(operator, found), new_workspace(kube, found, operator) as workspace:
        yield workspace, found.trainer_image


class InCluster:
    """One run of either kind, each with a claim, which continues when it is started again."""

    def __init__(self, workspace: Workspace, image: str, number: int) -> None:
        self._workspace, self._kube, self._image = workspace, workspace.kube, image
        self._name, self._by_hand = f"digits-{number}", f"by-hand-{number}"
        for name in (self._name, self._by_hand):
            claim = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
            body = {"metadata": {"name": name}, "spec": claim}
            self._kube.create("PersistentVolumeClaim", workspace.namespace, body)

    def ours(self, *, again: bool) -> dict[str, float]:
        """The moments of a job that is submitted, or resumed, and then suspended."""
        workspace, first = self._workspace, f"{self._name}-worker-0"
        submitted = time.time()
        if again:
            workspace.edit(self._name, runPolicy={"suspend": False})
        else:
            job = yaml.safe_load(JOB)
            job["metadata"]["name"] = self._name
            job["spec"]["trainer"]["output"] = {"claim": self._name}
            workspace.submit(job)
        self._printed(first, PROGRESS)
        pod = self._kube.get("Pod", workspace.namespace, first)
        told = json.loads(workspace.run_in(first, f'python -c "{_ASK}"'))
        accepted = workspace.condition(self._name, "Accepted")["lastTransitionTime"]
        known = {} if again else {"accepted": moment(accepted).timestamp()}
        workspace.edit(self._name, runPolicy={"suspend": True})
        workspace.eventually(lambda: not workspace.pods(self._name), "its pods are gone", seconds=_SECONDS)
        return since(submitted, known | _of_pod(pod) | of_ledger(told["ledger"]))

    def floor(self) -> dict[str, float]:
        """The moments of two pods by hand; what they have saved is there when others follow."""
        namespace = self._workspace.namespace
        pods = [f"{self._by_hand}-{index}" for index in range(2)]
        service = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {"app": self._by_hand}}
        submitted = time.time()
        self._kube.create("Service", namespace, {"metadata": {"name": self._by_hand}, "spec": service})
        for index in range(2):
            self._kube.create("Pod", namespace, self._pod(index, pods))
        printed = self._printed(pods[0], '{"imported"')
        pod = self._kube.get("Pod", namespace, pods[0])
        for name in pods:
            self._kube.delete("Pod", namespace, name, grace_seconds=0)
        self._kube.delete("Service", namespace, self._by_hand)
        there = [*(("Pod", name) for name in pods), ("Service", self._by_hand)]
        gone = lambda: all(self._kube.find(kind, namespace, name) is None for kind, name in there)  # noqa: E731
        self._workspace.eventually(gone, "the pods by hand are gone", seconds=_SECONDS)
        return since(submitted, _of_pod(pod) | json.loads(printed.splitlines()[-1]))

    def _pod(self, index: int, pods: list[str]) -> Object:
        workers = [f"{name}.{self._by_hand}.{self._workspace.namespace}.svc:{names.PORT}" for name in pods]
        config = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}}
        container = {
            "name": "tensorflow",
            "image": self._image,
            "command": ["python", "-c", BY_HAND.read_text(), "/output/by-hand", str(STEPS)],
            "env": [
                {"name": "TF_CONFIG", "value": json.dumps(config)},
                {"name": "TF_CPP_MIN_LOG_LEVEL", "value": "2"},
            ],
            "volumeMounts": [{"name": "output", "mountPath": "/output"}],
        }
        spec = {
            "hostname": pods[index],
            "subdomain": self._by_hand,
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "securityContext": {"fsGroup": 65532},
            "containers": [container],
            "volumes": [{"name": "output", "persistentVolumeClaim": {"claimName": self._by_hand}}],
        }
        return {"metadata": {"name": pods[index], "labels": {"app": self._by_hand}}, "spec": spec}

    def _printed(self, pod: str, text: str) -> str:
        """The log of the pod once it has the text."""
        namespace = self._workspace.namespace

        def log() -> str:
            found = self._kube.find("Pod", namespace, pod)
            states = ((found or {}).get("status") or {}).get("containerStatuses") or [{"state": {"waiting": {}}}]
            return "" if "waiting" in states[0]["state"] else self._kube.log(namespace, pod, "tensorflow")

        found: str = self._workspace.eventually(
            lambda: said if text in (said := log()) else "", f"{pod} prints {text}", seconds=_SECONDS, every=_EVERY
        )
        return found


def _of_pod(pod: Mapping[str, Any]) -> dict[str, float]:
    """Moments of its records."""
    scheduled = next(c for c in pod["status"]["conditions"] if c["type"] == "PodScheduled")["lastTransitionTime"]
    state = pod["status"]["containerStatuses"][0]["state"]
    began = (state.get("running") or state["terminated"])["startedAt"]
    times = {"created": pod["metadata"]["creationTimestamp"], "scheduled": scheduled, "began": began}
    return {name: moment(at).timestamp() for name, at in times.items()}
