"""install.yaml: what Helm would install, for `kubectl apply --server-side`."""

from pathlib import Path
from typing import Any

import yaml
from localcluster import helm

NAMESPACE = "tfgpu-system"
_OF_HELM = ("helm.sh/chart", "app.kubernetes.io/managed-by", "helm.sh/resource-policy")
FILES = {"install.yaml": "1.28", "install-no-cel.yaml": "1.20"}
"""By name, the oldest Kubernetes that takes it; the second one has a definition without rules in CEL."""
_HEADER = """\
# TFGPUJob {version}. For Kubernetes {oldest} and later:
#   kubectl apply --server-side -f {name}
"""


def install_yaml(chart: Path, version: str, name: str, oldest: str) -> str:
    """The objects of the chart with its own values, the namespace and the definition first."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}}
    objects = helm.template(chart, release="tfgpu", namespace=NAMESPACE, kube_version=f"v{oldest}.0")
    definitions = [o for o in objects if o["kind"] == "CustomResourceDefinition"]
    others = [o for o in objects if o["kind"] != "CustomResourceDefinition"]
    found = [namespace, *definitions, *(_without_helm(item) for item in others)]
    for definition in definitions:
        definition["metadata"].pop("annotations", None)
    text = "---\n".join(yaml.dump(item, sort_keys=False, width=120, Dumper=yaml.CSafeDumper) for item in found)
    return f"{_HEADER.format(version=version, oldest=oldest, name=name)}{text}"


def _without_helm(item: dict[str, Any]) -> dict[str, Any]:
    """Without the labels that name Helm as the manager."""
    metadatas = [item["metadata"], ((item.get("spec") or {}).get("template") or {}).get("metadata") or {}]
    for metadata in metadatas:
        for key in _OF_HELM:
            (metadata.get("labels") or {}).pop(key, None)
    return item
