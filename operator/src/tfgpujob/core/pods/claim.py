"""The PersistentVolumeClaims of a replica: one for each of its volumeClaimTemplates, the same in every attempt."""

from __future__ import annotations

from typing import Any

from tfgpujob import names
from tfgpujob.api import ReplicaSpec
from tfgpujob.core.observed import metadata
from tfgpujob.core.observed.snapshot import Object
from tfgpujob.names import Role


def build_claims(job: Object, replica_spec: ReplicaSpec, role: Role, index: int) -> tuple[Object, ...]:
    """Without an owner, unless they are to be deleted with the job: then garbage collection deletes them, so the
    operator needs no right to delete users' data."""
    name = job["metadata"]["name"]
    ours = {
        **metadata.job_labels(name),
        names.LABEL_APP_COMPONENT: str(role),
        names.LABEL_REPLICA_TYPE: str(role),
        names.LABEL_REPLICA_INDEX: str(index),
    }
    owner = {"ownerReferences": [metadata.owner_reference(job)]} if replica_spec.owns_claims else {}
    return tuple(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {
                "name": metadata.claim_name(template.metadata.name, metadata.pod_name(name, role, index)),
                "namespace": job["metadata"]["namespace"],
                "labels": {**(template.metadata.labels or {}), **ours},
                **({"annotations": template.metadata.annotations} if template.metadata.annotations else {}),
                **owner,
            },
            "spec": template.claim_spec,
        }
        for template in replica_spec.volume_claim_templates or ()
    )


def add_claims(pod_spec: dict[str, Any], replica_spec: ReplicaSpec, pod: str) -> None:
    """The volumes of a pod's claims. Its containers mount them by name."""
    volumes = [
        {
            "name": template.metadata.name,
            "persistentVolumeClaim": {"claimName": metadata.claim_name(template.metadata.name, pod)},
        }
        for template in replica_spec.volume_claim_templates or ()
    ]
    if volumes:
        pod_spec["volumes"] = [*pod_spec.get("volumes", []), *volumes]
