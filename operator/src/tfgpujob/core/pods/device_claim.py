"""The resource claim of a pod's GPUs (spec.gpu.claim), and the ResourceClaimTemplate that the operator creates for it.

Its spec is immutable, so its name has a digest of it: an edit of the job creates another one, and both are deleted with
the job. Kubernetes creates a claim from it for each pod.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Final

from tfgpujob.api import DeviceClaim, JobSpec, ReplicaSpec, gpus
from tfgpujob.core.observed import metadata
from tfgpujob.core.observed.snapshot import DEVICE_TEMPLATES, Kind, Object
from tfgpujob.names import GPU_CLAIM, Role

_DIGITS: Final = 8


def claims_devices(spec: JobSpec, role: Role, replica_spec: ReplicaSpec) -> bool:
    """True if the pods of this role get their GPUs by spec.gpu.claim."""
    return spec.gpu.claim is not None and gpus(spec, role, replica_spec) > 0


def build_device_template(job: Object, claim: DeviceClaim, kind: Kind) -> Object | None:
    """None: the job names an existing template."""
    if claim.template_name is not None:
        return None
    return {
        "apiVersion": DEVICE_TEMPLATES[kind],
        "kind": "ResourceClaimTemplate",
        "metadata": {**metadata.dependent_metadata(job), "name": _template_name(job, claim)},
        "spec": {"spec": {"devices": {"requests": [_request(claim)]}}},
    }


def add_device_claim(job: Object, claim: DeviceClaim, pod_spec: dict[str, Any], container: dict[str, Any]) -> None:
    added = {"name": GPU_CLAIM, "resourceClaimTemplateName": _template_name(job, claim)}
    pod_spec["resourceClaims"] = [*pod_spec.get("resourceClaims", []), added]
    resources: dict[str, Any] = container.setdefault("resources", {})
    resources["claims"] = [*(resources.get("claims") or []), {"name": GPU_CLAIM}]


def _template_name(job: Object, claim: DeviceClaim) -> str:
    if claim.template_name is not None:
        return claim.template_name
    text = json.dumps(_request(claim), sort_keys=True, separators=(",", ":"))
    return f"{job['metadata']['name']}-gpu-{hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]}"


def _request(claim: DeviceClaim) -> dict[str, Any]:
    if claim.first_available is None:
        assert claim.device_class_name is not None, "the rules see to it"
        return {"name": "gpu", "exactly": _devices(claim.device_class_name, claim.selectors, claim.count)}
    alternatives = [
        {"name": f"choice-{index}", **_devices(choice.device_class_name, choice.selectors, claim.count)}
        for index, choice in enumerate(claim.first_available)
    ]
    return {"name": "gpu", "firstAvailable": alternatives}


def _devices(device_class: str, selectors: list[str] | None, count: int | None) -> dict[str, Any]:
    chosen = {"selectors": [{"cel": {"expression": text}} for text in selectors]} if selectors else {}
    return {"deviceClassName": device_class, **chosen, "allocationMode": "ExactCount", "count": count or 1}
