"""What the operator under test has on from the start: the chart's features that are off by default, and the kinds that
they need. An upgrade of the chart for each test would take longer than most tests."""

from __future__ import annotations

from typing import Any

from tests.integration.eventually import eventually
from tests.integration.kube import Kube, Object, Refused

KINDS_OF_KUEUE = {
    "workloads": "Workload",
    "resourceflavors": "ResourceFlavor",
    "workloadpriorityclasses": "WorkloadPriorityClass",
}
GROUP_VERSION = "/apis/kueue.x-k8s.io/v1beta1"
CRD = "CustomResourceDefinition"


def values(isolated: str) -> dict[str, Any]:
    """Values of the chart; `isolated` is the namespace whose jobs get a NetworkPolicy."""
    return {
        "volumeClaims": {"enabled": True},
        "kueue": {"enabled": True},
        "networkPolicy": {"jobNamespaces": [isolated]},
    }


def environment(isolated: str) -> dict[str, str]:
    """The same for an operator that runs as a process."""
    return {"VOLUME_CLAIMS": "true", "KUEUE_ENABLED": "true", "NETWORK_POLICY_NAMESPACES": isolated}


def has_kueue(kube: Kube) -> bool:
    """Whether Kueue itself is there, which would answer beside a test that plays its part."""
    return kube.find(CRD, "", "clusterqueues.kueue.x-k8s.io") is not None


def add_kinds_of_kueue(kube: Kube) -> None:
    """So that an operator that starts finds them."""
    if has_kueue(kube):
        return
    for plural, kind in KINDS_OF_KUEUE.items():
        if kube.find(CRD, "", f"{plural}.kueue.x-k8s.io") is None:
            kube.create(CRD, "", _definition(plural, kind))
    eventually(lambda: all(_is_served(kube, plural) for plural in KINDS_OF_KUEUE), "Kueue's kinds are served")


def remove_kinds_of_kueue(kube: Kube) -> None:
    if not has_kueue(kube):
        for plural in KINDS_OF_KUEUE:
            kube.delete(CRD, "", f"{plural}.kueue.x-k8s.io")


def _definition(plural: str, kind: str) -> Object:
    """As little of Kueue's as its contract needs: the names, and where the status is."""
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {
        "name": "v1beta1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": anything},
        **({"subresources": {"status": {}}} if kind == "Workload" else {}),
    }
    return {
        "metadata": {"name": f"{plural}.kueue.x-k8s.io"},
        "spec": {
            "group": "kueue.x-k8s.io",
            "scope": "Namespaced" if kind == "Workload" else "Cluster",
            "names": {"plural": plural, "singular": kind.lower(), "kind": kind, "listKind": f"{kind}List"},
            "versions": [version],
        },
    }


def _is_served(kube: Kube, plural: str) -> bool:
    """The condition Established comes a moment before the API server answers, and discovery a moment after."""
    try:
        served = kube.call("GET", GROUP_VERSION)["resources"]
        kube.call("GET", f"{GROUP_VERSION}/{plural}")
    except Refused as refused:
        if refused.code != 404:
            raise
        return False
    return plural in {row["name"] for row in served}
