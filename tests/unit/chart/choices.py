"""What the chart lets one choose, and every two choices together."""

from __future__ import annotations

from itertools import combinations, product
from typing import Any

from tests.unit.chart.rendered import Object


def metrics(**parts: Any) -> Object:
    return {"metrics": {name: {"enabled": True, **part} for name, part in parts.items()}}


LABELS = {"labels": {"release": "prom"}}
ALL_MONITORING = metrics(
    serviceMonitor={**LABELS, "interval": "7s"}, podMonitor={**LABELS, "interval": "9s"}, prometheusRule=LABELS,
    dashboard=LABELS,
)  # fmt: skip
MONITORS = {"ServiceMonitor", "PodMonitor", "PrometheusRule"}
"""Kinds of the Prometheus operator, which a server has only where that is installed."""
NETWORK: Object = {"networkPolicy": {"enabled": True}}
PLACE = {"name": "a", "namespace": "{{ .Release.Namespace }}"}
MAP: Object = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": PLACE}
CHOICES: dict[str, list[Object]] = {
    "copies": [{"replicas": 1}, {"replicas": 3}],
    "namespaces": [{}, {"watchNamespaces": ["a", "b"]}],
    "rbac": [{}, {"rbac": {"create": False}}, {"rbac": {"aggregateToDefaultRoles": False}}],
    "account": [{}, {"serviceAccount": {"create": False, "name": "mine"}}],
    "definition": [{}, {"crds": {"install": False}}],
    "monitoring": [{}, ALL_MONITORING],
    "network": [{}, NETWORK, {"networkPolicy": {"jobNamespaces": ["*"]}}],
    "gangs": [{}, {"gang": {"backends": ["Volcano", "Native"], "default": "Native"}}],
    "claims": [{}, {"volumeClaims": {"enabled": True}, "deviceClaims": {"enabled": True}}],
    "kueue": [{}, {"kueue": {"enabled": True}}],
    "labels": [{}, {"commonLabels": {"a": "b"}, "podLabels": {"c": "d"}}],
    "extra": [{}, {"extraArgs": ["--workers=1"], "extraObjects": [MAP]}],
}
PAIRS: dict[str, Object] = {
    f"{a}-{i}-{b}-{k}": {**first, **second}
    for a, b in combinations(CHOICES, 2)
    for (i, first), (k, second) in product(enumerate(CHOICES[a]), enumerate(CHOICES[b]))
    if first or second
}
