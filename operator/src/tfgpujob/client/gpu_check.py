"""A pod that tries the GPUs of its node: the trainer's `gpu_doctor`, of the trainer's image."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final

from tfgpujob import names
from tfgpujob.client.errors import PodError
from tfgpujob.client.own_pod import CONFINED, made, waits_for
from tfgpujob.client.server import Server
from tfgpujob.core.observed.snapshot import Object
from tfgpujob.kube.errors import MISSING, ApiError
from tfgpujob_contract.limits import SHM_DIR
from tfgpujob_contract.variables import Variable

GPU: Final = "nvidia.com/gpu"
LIFETIME_SECONDS: Final = 3600
"""A pod that its owner could not delete ends by itself."""
_NAME: Final = "gpu-doctor"
_TMP: Final = "/tmp"  # noqa: S108 - a volume of the pod's own: the rest of its disk is read-only


@dataclass(frozen=True, slots=True)
class GpuCheck:
    """State of the pod."""

    pod: str
    node: str
    """Empty until the pod has a node."""
    waiting: str
    """What the pod waits for; empty once it has ended."""
    found: Object | None = None
    """What the trainer's gpu_doctor says, once it has ended."""


def gpu_pod(namespace: str, image: str, gpus: int, node: str | None) -> Object:
    """A pod like those of a job, with `gpus` GPUs. `node` None: the scheduler chooses the node."""
    container = {
        "name": names.CONTAINER,
        "image": image,
        "command": ["python", "-m", "tfgpujob_trainer.gpu_doctor"],
        "env": [{"name": str(Variable.GPUS), "value": str(gpus)}, {"name": "HOME", "value": _TMP}],
        "resources": {"requests": {"cpu": "500m", "memory": "2Gi", GPU: gpus}, "limits": {"memory": "8Gi", GPU: gpus}},
        "securityContext": CONFINED,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [{"name": "tmp", "mountPath": _TMP}, {"name": "shm", "mountPath": SHM_DIR}],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"tfgpu-{_NAME}-{secrets.token_hex(3)}",
            "namespace": namespace,
            "labels": {names.LABEL_APP_NAME: _NAME},
        },
        "spec": {
            "activeDeadlineSeconds": LIFETIME_SECONDS,
            "automountServiceAccountToken": False,
            "containers": [container],
            "enableServiceLinks": False,
            **({} if node is None else {"nodeSelector": {"kubernetes.io/hostname": node}}),
            "restartPolicy": "Never",
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": names.NON_ROOT_USER,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "terminationGracePeriodSeconds": 1,
            "tolerations": [{"key": GPU, "operator": "Exists"}],
            "volumes": [{"name": "tmp", "emptyDir": {}}, {"name": "shm", "emptyDir": {"medium": "Memory"}}],
        },
    }


async def run_gpu_pod(server: Server, pod: Object, seconds: float) -> AsyncGenerator[GpuCheck]:
    """Create the pod, yield each change of its state until it has ended with a result, then delete it.

    Raises PodError when that takes longer than `seconds`, when another client deletes the pod, or when it ends without
    a result.
    """
    name, deadline = pod["metadata"]["name"], time.monotonic() + seconds
    waits = f"the pod {name} waits after {seconds:.0f} s"
    deleted = PodError(f"the pod {name} was deleted while it ran", "try again")
    async with made(server.connection, pod) as path, aclosing(server.changes(path.rpartition("/")[0], name)) as changes:
        said = GpuCheck(name, "", "its node is chosen")
        while True:
            try:
                event = await asyncio.wait_for(anext(changes), deadline - time.monotonic())
            except TimeoutError as error:
                fix = "give it longer with --timeout, or another node with --node"
                raise PodError(f"{waits}: {said.waiting}", fix) from error
            except ApiError as error:
                if error.code != MISSING:
                    raise
                raise deleted from error  # before it was first looked at
            if event.type == "DELETED":
                raise deleted
            now = _seen(event.object)
            if now != said:
                yield now
            if now.found is not None:
                return
            said = now


def _seen(pod: Object) -> GpuCheck:
    status, name = pod.get("status") or {}, pod["metadata"]["name"]
    node = pod["spec"].get("nodeName", "")
    if status.get("phase") not in {"Failed", "Succeeded"}:
        running = status.get("phase") == "Running"
        return GpuCheck(name, node, "its GPUs are tried" if running else waits_for(pod))
    ended = [(container["state"].get("terminated") or {}) for container in status.get("containerStatuses") or ()]
    said = ended[0].get("message", "") if ended else ""
    if (found := _report(said)) is None:
        words = status.get("message") or said.strip().rpartition("\n")[2] or "without a word"
        fix = "name an image of this release's trainer with --image"
        raise PodError(f"the pod {name} on {node or 'no node'} has ended: {words}", fix)
    return GpuCheck(name, node, "", found)


def _report(message: str) -> Any:
    """`summary` of the trainer's termination message; None where that is something else."""
    try:
        return json.loads(message)["summary"]
    except (ValueError, KeyError, TypeError):
        return None
