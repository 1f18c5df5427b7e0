"""Kueue's Workload of a job: what its pods will request, by role, so that they can wait in a queue before they exist.

It belongs to the job, not to an attempt: the job restarts within its admission. `pod_sets` differs if it was created
from another spec, or for another queue; then it is deleted, and a new one is created.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Final

from tfgpujob import names
from tfgpujob.api import JobSpec
from tfgpujob.core.observed.admission import queue_name, related
from tfgpujob.core.observed.metadata import dependent_metadata
from tfgpujob.core.observed.plan import Plan, replica_specs, resolve
from tfgpujob.core.observed.snapshot import KUEUE, Config, Kind, Object, Snapshot
from tfgpujob.core.pods.pod import Replica, build_pod
from tfgpujob.names import Role

_POD_LABELS: Final = (names.LABEL_ATTEMPT, names.LABEL_REPLICA_INDEX, names.LABEL_REPLICA_RESTART)
_SOURCES: Final = {
    "WorkloadPriorityClass": "kueue.x-k8s.io/workloadpriorityclass",
    "PriorityClass": "scheduling.k8s.io/priorityclass",
}
"""Names of the two kinds of priority class in v1beta1."""


def pod_sets(job: Object, spec: JobSpec) -> str:
    """A digest of the requests of the job's Workload."""
    workers = spec.replica_specs.worker
    asked = {
        "shape": spec.shape_hash,
        "workers": [workers.replicas, workers.min_replicas] if workers is not None else [],
        "queue": queue_name(job),
        "priority": _priority_class(job, spec),
    }
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:16]


def build_workload(snapshot: Snapshot, spec: JobSpec, config: Config) -> Object | str:
    """The Workload, or why it can't be made yet: the field, the problem and the fix."""
    job, kind = snapshot.job, config.kueue
    assert kind is not None
    priority = _priority(snapshot, spec, kind)
    if isinstance(priority, str):
        return priority
    plan = resolve(spec, config)
    metadata = dependent_metadata(job)
    return {
        "apiVersion": KUEUE[kind],
        "kind": "Workload",
        "metadata": {
            **metadata,
            "labels": {**metadata["labels"], names.LABEL_QUEUE_JOB_UID: job["metadata"]["uid"]},
            "annotations": {names.ANNOTATION_POD_SETS: pod_sets(job, spec)},
        },
        "spec": {
            "queueName": queue_name(job),
            **priority,
            "podSets": [_pod_set(job, spec, plan, role) for role in plan.counts],
        },
    }


def _pod_set(job: Object, spec: JobSpec, plan: Plan, role: Role) -> dict[str, Any]:
    count, least = plan.counts[role], replica_specs(spec)[role].min_replicas
    fewer = {"minCount": least} if least is not None and least < count else {}
    return {
        "name": str(role),
        "count": count,
        **fewer,
        "template": _template(build_pod(job, spec, plan, Replica(role, 0, 0))),
    }


def _template(pod: Object) -> dict[str, Any]:
    """What all pods of a role have in common, without the environment and the command."""
    spec = {key: value for key, value in pod["spec"].items() if key not in {"hostname", "subdomain"}}
    for field in ("initContainers", "containers"):
        if field in spec:
            spec[field] = [{k: v for k, v in container.items() if k != "env"} for container in spec[field]]
    labels = {key: value for key, value in pod["metadata"]["labels"].items() if key not in _POD_LABELS}
    return {"metadata": {"labels": labels}, "spec": spec}


def _priority_class(job: Object, spec: JobSpec) -> tuple[str, str]:
    """Kind and name of the job's priority in its queue: its own label, else the priority of its pods."""
    own = (job["metadata"].get("labels") or {}).get(names.LABEL_QUEUE_PRIORITY)
    if own:
        return "WorkloadPriorityClass", str(own)
    policy = spec.run_policy.scheduling_policy
    templates = (((replica.template or {}).get("spec") or {}) for replica in replica_specs(spec).values())
    found = [str(t["priorityClassName"]) for t in templates if t.get("priorityClassName")]
    default = [policy.priority_class] if policy is not None and policy.priority_class else []
    return next((("PriorityClass", name) for name in (*found, *default)), ("", ""))


def _priority(snapshot: Snapshot, spec: JobSpec, workload: Kind) -> dict[str, Any] | str:
    job = snapshot.job
    kind, name = _priority_class(job, spec)
    if not name:
        return {}
    where = Kind.POD_PRIORITY if kind == "PriorityClass" else related(workload, kind)
    found = snapshot.cluster_objects.get(where, {}).get(name)
    if found is None:
        field = (
            f"metadata.labels[{names.LABEL_QUEUE_PRIORITY}]" if where is not Kind.POD_PRIORITY else "priorityClassName"
        )
        return f"{field}: there is no {kind} {name}. Create it, or name another."
    value = {"priority": int(found.get("value") or 0)}
    if workload is Kind.WORKLOAD_V1BETA1:
        return {"priorityClassName": name, "priorityClassSource": _SOURCES[kind], **value}
    group = "scheduling.k8s.io" if kind == "PriorityClass" else "kueue.x-k8s.io"
    return {"priorityClassRef": {"group": group, "kind": kind, "name": name}, **value}
