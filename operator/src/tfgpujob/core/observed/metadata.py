"""Labels and ownerReferences, which tie a pod or service to its job."""

from __future__ import annotations

from typing import Any

from tfgpujob import names
from tfgpujob.core.observed.snapshot import Object
from tfgpujob.names import Role


def job_labels(job_name: str) -> dict[str, str]:
    return {
        names.LABEL_JOB_NAME: job_name,
        names.LABEL_APP_NAME: names.SINGULAR,
        names.LABEL_APP_INSTANCE: job_name,
        names.LABEL_APP_MANAGED_BY: names.FIELD_OWNER,
    }


def pod_labels(job_name: str, role: Role, index: int, attempt: int, replica_restart: int) -> dict[str, str]:
    return {
        **job_labels(job_name),
        names.LABEL_APP_COMPONENT: str(role),
        names.LABEL_REPLICA_TYPE: str(role),
        names.LABEL_REPLICA_INDEX: str(index),
        names.LABEL_ATTEMPT: str(attempt),
        names.LABEL_REPLICA_RESTART: str(replica_restart),
    }


def pod_name(job_name: str, role: Role, index: int) -> str:
    return f"{job_name}-{role}-{index}"


def claim_name(volume: str, pod: str) -> str:
    """The name, as a StatefulSet names the claims of its pods."""
    return f"{volume}-{pod}"


def owner_reference(job: Object) -> dict[str, Any]:
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "name": job["metadata"]["name"],
        "uid": job["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def dependent_metadata(job: Object) -> dict[str, Any]:
    """Metadata of an object of the job that has its name: the service, the NetworkPolicy, the pod group."""
    name = job["metadata"]["name"]
    return {
        "name": name,
        "namespace": job["metadata"]["namespace"],
        "labels": job_labels(name),
        "ownerReferences": [owner_reference(job)],
    }
