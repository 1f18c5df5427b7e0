"""The cache of cluster-scoped objects that jobs in Kueue's queues refer to: flavors and priority classes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from tfgpujob.core.observed.snapshot import KUEUE, Kind, Object
from tfgpujob.core.observed.trim import trim_cluster_object

CLUSTER_OBJECTS: Final = frozenset(
    {Kind.POD_PRIORITY, *(kind for kind in KUEUE if kind.startswith(("ResourceFlavor.", "WorkloadPriorityClass.")))}
)


class ClusterObjects:
    """Fed by lists and a watch. Every change returns whether it matters to a job."""

    def __init__(self) -> None:
        self._objects: dict[Kind, dict[str, Object]] = {}

    def snapshot(self) -> Mapping[Kind, Mapping[str, Object]]:
        return {kind: dict(objects) for kind, objects in self._objects.items()}

    def put(self, kind: Kind, obj: Object) -> bool:
        objects, name, trimmed = self._of(kind), obj["metadata"]["name"], trim_cluster_object(obj)
        changed = objects.get(name) != trimmed
        objects[name] = trimmed
        return changed

    def remove(self, kind: Kind, name: str) -> bool:
        return self._of(kind).pop(name, None) is not None

    def sync(self, kind: Kind, listed: Iterable[Object]) -> bool:
        """Apply a complete list. The watch, or the next list, repeats events that arrived while it was requested."""
        before = self._of(kind)
        self._objects[kind] = {obj["metadata"]["name"]: trim_cluster_object(obj) for obj in listed}
        return before != self._objects[kind]

    def _of(self, kind: Kind) -> dict[str, Object]:
        return self._objects.setdefault(kind, {})
