"""Makes a pod comply with Pod Security "restricted": adds required fields that the template does not set.

The host rules have refused what contradicts it (`api/rules/host.py`).
"""

from __future__ import annotations

from typing import Any

from tfgpujob.core.observed.snapshot import Object


def restrict(pod: Object) -> Object:
    spec = pod["spec"]
    secured = {
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
        **(spec.get("securityContext") or {}),
    }
    containers = {
        kind: [_restricted(container) for container in spec[kind]]
        for kind in ("containers", "initContainers")
        if kind in spec
    }
    return {**pod, "spec": {**spec, "securityContext": secured, **containers}}


def _restricted(container: Object) -> dict[str, Any]:
    own = container.get("securityContext") or {}
    capabilities = {**(own.get("capabilities") or {}), "drop": ["ALL"]}
    return {**container, "securityContext": {"allowPrivilegeEscalation": False, **own, "capabilities": capabilities}}
