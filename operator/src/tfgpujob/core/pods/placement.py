"""The nodes that Kueue assigns to a pod: what the flavors and admission checks of its Workload add."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def place(
    added: Mapping[str, Any], labels: dict[str, str], annotations: dict[str, str], pod_spec: dict[str, Any]
) -> None:
    """Adds it to a pod's labels, annotations and spec. It takes precedence over the template, because its quota is the
    one that is used.

    Kueue admits no pod to a flavor whose labels contradict the pod's own node selector.
    """
    labels.update(added.get("labels") or {})
    annotations.update(added.get("annotations") or {})
    if selector := added.get("nodeSelector"):
        pod_spec["nodeSelector"] = {**(pod_spec.get("nodeSelector") or {}), **selector}
    own = pod_spec.get("tolerations") or []
    if more := [toleration for toleration in added.get("tolerations") or () if toleration not in own]:
        pod_spec["tolerations"] = [*own, *more]
