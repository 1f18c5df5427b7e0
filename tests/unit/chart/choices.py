"""What the chart lets one choose, and every two choices together."""

from __future__ import annotations

from collections.abc import Iterator
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
    "history": [{}, {"history": {"enabled": True, "databaseSecret": "db"}, "ui": {"enabled": True}}],
    "extra": [{}, {"extraArgs": ["--workers=1"], "extraObjects": [MAP]}],
}
EVERY_PAIR = [
    {(a, i), (b, k)}
    for a, b in combinations(CHOICES, 2)
    for i, k in product(range(len(CHOICES[a])), range(len(CHOICES[b])))
]


def covering() -> Iterator[dict[str, int]]:
    """The numbers of what is chosen, so that each pair is in some row: one that is open, and what meets most others."""
    left = EVERY_PAIR
    while left:
        row = dict(sorted(left[0]))
        for name in [name for name in CHOICES if name not in row]:
            met = [sum({(name, i), one} in left for one in row.items()) for i in range(len(CHOICES[name]))]
            row[name] = met.index(max(met))
        yield row
        left = [pair for pair in left if not pair <= row.items()]


def values(row: dict[str, int]) -> Object:
    return {key: value for name, number in row.items() for key, value in CHOICES[name][number].items()}
