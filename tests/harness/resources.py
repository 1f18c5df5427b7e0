"""The kinds that the harness serves, and how each behaves. What is not listed is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tfgpujob import names

Object = dict[str, Any]
GPU = "nvidia.com/gpu"


class NotModelledError(AssertionError):
    """The harness was asked for something whose real behaviour it does not know. Model it, or don't ask."""


@dataclass(frozen=True, slots=True)
class Resource:
    """One row of the API: its paths, its words in messages, its rules."""

    kind: str
    api_version: str
    plural: str
    namespaced: bool = True
    status: bool = False
    """It has a /status subresource, so that PUT on the object leaves status alone."""
    generation: bool = False
    """metadata.generation counts changes of the spec; a custom resource has it."""
    graceful: bool = False
    """Delete waits for the kubelet when the pod runs on a node."""
    kind_in_conflicts: bool = False
    """Messages about preconditions of deletes name the kind, not the plural."""

    @property
    def group(self) -> str:
        return self.api_version.rpartition("/")[0]

    def in_messages(self, *, kind: bool = False) -> str:
        """How the API server names it: `pods`, `Pod`, `tfgpujobs.tfgpu.dev`, `TFGPUJob.tfgpu.dev`."""
        word = self.kind if kind else self.plural
        return f"{word}.{self.group}" if self.group else word


RESOURCES = {
    resource.kind: resource
    for resource in (
        Resource(names.KIND, names.API_VERSION, names.PLURAL, status=True, generation=True),
        Resource("Pod", "v1", "pods", status=True, graceful=True),
        Resource("Service", "v1", "services", status=True),
        Resource("NetworkPolicy", "networking.k8s.io/v1", "networkpolicies", generation=True),
        Resource("PodGroup", "scheduling.volcano.sh/v1beta1", "podgroups", generation=True),
        Resource("ResourceClaimTemplate", "resource.k8s.io/v1", "resourceclaimtemplates"),
        Resource("Workload", "kueue.x-k8s.io/v1beta1", "workloads", status=True, generation=True),
        Resource("ResourceFlavor", "kueue.x-k8s.io/v1beta1", "resourceflavors", namespaced=False, generation=True),
        Resource("WorkloadPriorityClass", "kueue.x-k8s.io/v1beta1", "workloadpriorityclasses", namespaced=False),
        Resource("PriorityClass", "scheduling.k8s.io/v1", "priorityclasses", namespaced=False),
        Resource("Event", "v1", "events"),
        Resource("ConfigMap", "v1", "configmaps"),
        Resource("PersistentVolumeClaim", "v1", "persistentvolumeclaims", status=True),
        Resource("Job", "batch/v1", "jobs", status=True, generation=True),
        Resource("Lease", "coordination.k8s.io/v1", "leases"),
        Resource("Node", "v1", "nodes", namespaced=False, status=True),
        Resource("ResourceQuota", "v1", "resourcequotas", status=True),
        Resource("Namespace", "v1", "namespaces", namespaced=False, status=True),
    )
}


def resource(kind: str) -> Resource:
    """The row of that kind; NotModelledError when the harness does not serve it."""
    try:
        return RESOURCES[kind]
    except KeyError:
        raise NotModelledError(f"the harness serves no {kind}") from None


def in_objects(kind: str) -> str:
    """The kind as in objects: the operator has the version and group of pod groups in it, `PodGroup.v1beta1.…`."""
    return kind.partition(".")[0]


def merged(old: Mapping[str, Any], **changes: Any) -> Object:
    """A shallow copy with some keys replaced; None removes one. Stored objects are never changed in place."""
    new = {**old, **changes}
    return {key: value for key, value in new.items() if value is not None}


def with_meta(obj: Mapping[str, Any], **changes: Any) -> Object:
    """The object with some of its metadata replaced."""
    return {**obj, "metadata": merged(obj["metadata"], **changes)}


def matches(selector: str, labels: Mapping[str, str]) -> bool:
    """Equality and existence selectors, which is all that the operator uses."""
    for term in filter(None, selector.split(",")):
        if any(sign in term for sign in ("!=", " in", "(", "!")):
            raise NotModelledError(f"label selector {selector!r}")
        key, equals, value = term.partition("=")
        value = value.removeprefix("=")
        if key not in labels or (equals and labels[key] != value):
            return False
    return True


def controller(obj: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The owner reference that controls the object."""
    for reference in obj["metadata"].get("ownerReferences", ()):
        if reference.get("controller"):
            return dict(reference)
    return None
