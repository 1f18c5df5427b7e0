"""The state of a run, without what may rightly differ between two runs that ended alike.

Left out, and why:
- uids, resourceVersions, times: they are different in every run by their nature;
- the attempt's number, in status, labels and messages: a start that a fault broke off is followed by another one;
- events: written last and never retried, so a crash may lose one and a retry may repeat one; status is the truth;
- the Lease: who leads is no part of a job's state;
- whether a pod that went was seen going (Deleted) or only missed (Vanished);
- whether Kueue was told that the pods are ready: not of a job that ended meanwhile;
- how many replicas of a finished job were ready or active: what was last seen before the end was written.
Everything else counts: every condition with status, reason and message, the budgets, which pods are there, what
they were built from and how they ended.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from tests.harness.apiserver import ApiServer
from tests.harness.resources import Object, controller

from tfgpujob import names

_LEFT_OUT = frozenset(
    (
        "lastTransitionTime",
        "startTime",
        "completionTime",
        "attemptStartTime",
        "gpuTime",
        "goodput",
        "lastRecovery",
        "time",
        "notBefore",
        "attempt",
        "backoffUntil",
        "lastCountedPodUID",
    )
)
_NUMBERS = re.compile(r"([Aa]ttempt) \d+")


def state(server: ApiServer) -> dict[str, Any]:
    """Jobs and what belongs to them, by kind, namespace and name."""
    told = {"TFGPUJob": _job, "Pod": _pod, "Workload": _workload}
    told |= dict.fromkeys(("Service", "NetworkPolicy", "PodGroup", "PersistentVolumeClaim"), _dependent)
    return {
        f"{kind} {namespace}/{name}": told[kind](obj)
        for (kind, namespace, name), obj in sorted(server.objects.items())
        if kind in told
    }


def _job(obj: Object) -> Any:
    going = "deletionTimestamp" in obj["metadata"]
    status = _plain(obj.get("status") or {})
    status["conditions"] = {c["type"]: c for c in status.get("conditions", ())}
    if status["conditions"].get("Finished"):
        status.pop("ready", None)
        for counts in status.get("replicaStatuses", {}).values():
            counts.pop("ready", None)
            counts.pop("active", None)
    return {"going": going, "spec": obj.get("spec"), "status": status}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        plain = {key: _plain(item) for key, item in value.items() if key not in _LEFT_OUT}
        return {key: item for key, item in plain.items() if item != ""}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return _words(value) if isinstance(value, str) else value


def _words(text: str) -> str:
    text = text.replace("Vanished", "Deleted").replace("its pod no longer exists", "")
    return _NUMBERS.sub(r"\1 N", text)


def _pod(obj: Object) -> Any:
    meta, status = obj["metadata"], obj.get("status") or {}
    labels = {key: value for key, value in (meta.get("labels") or {}).items() if key != names.LABEL_ATTEMPT}
    containers = [
        {key: container.get(key) for key in ("name", "image", "command", "args", "resources")}
        for container in obj["spec"]["containers"]
    ]
    return {
        "labels": labels,
        "owner": _owner(obj),
        "going": "deletionTimestamp" in meta,
        "phase": status.get("phase"),
        "ended": [c["state"].get("terminated", {}).get("exitCode") for c in status.get("containerStatuses", ())],
        "containers": containers,
        "cluster": tf_config(obj).get("cluster"),
    }


def _dependent(obj: Object) -> Any:
    return {"owner": _owner(obj), "going": "deletionTimestamp" in obj["metadata"], "spec": obj.get("spec")}


def _workload(obj: Object) -> Any:
    status = obj.get("status") or {}
    told = (c for c in status.get("conditions") or () if c["type"] != "PodsReady")
    conditions = {c["type"]: (c["status"], c["reason"]) for c in told}
    return {**_dependent(obj), "conditions": conditions, "admission": status.get("admission")}


def _owner(obj: Object) -> str:
    owner = controller(obj)
    return f"{owner['kind']}/{owner['name']}" if owner else ""


def tf_config(pod: Mapping[str, Any]) -> dict[str, Any]:
    """The TF_CONFIG of the pod's tensorflow container; empty when it has none."""
    text = tf_config_text(pod)
    config: dict[str, Any] = json.loads(text) if text else {}
    return config


def tf_config_text(pod: Mapping[str, Any]) -> str:
    """The same as the container gets it."""
    for container in pod["spec"]["containers"]:
        if container["name"] == names.CONTAINER:
            for env in container.get("env") or ():
                if env["name"] == "TF_CONFIG":
                    return str(env["value"])
    return ""
