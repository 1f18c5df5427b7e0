"""Which nodes are lost: known to be not ready, or known and then gone.

A node of which nothing is known is not lost: the events of its pods may arrive before its own. When no node at all is
ready, the control plane is taken for partitioned, as Kubernetes' node controller does, and no node counts as lost.
"""

from __future__ import annotations

from collections.abc import Iterable

from tfgpujob.core.observed.conditions import is_true
from tfgpujob.core.observed.snapshot import Object


class Nodes:
    """Fed by lists and a watch, in any order. Every change returns the names of the nodes lost or found by it."""

    def __init__(self) -> None:
        self._ready: dict[str, bool] = {}
        self._versions: dict[str, int] = {}
        self.lost: frozenset[str] = frozenset()

    def put(self, node: Object) -> frozenset[str]:
        return self._update(node, ready=is_true(node, "Ready"))

    def remove(self, node: Object) -> frozenset[str]:
        """It is gone; its name is kept, because its pods still name it."""
        return self._update(node, ready=False)

    def known(self) -> frozenset[str]:
        """Names of the nodes that are there, or were."""
        return frozenset(self._ready)

    def sync(self, nodes: Iterable[Object], known: frozenset[str], named: frozenset[str]) -> frozenset[str]:
        """A complete list: whoever was `known` before the request and is not in it is gone.

        `named` are the nodes that pods name; of the others that are gone nothing is kept.
        """
        before, present = self.lost, {node["metadata"]["name"] for node in nodes}
        for name in known - present:
            self._ready[name] = False
            if name not in named:
                del self._ready[name]
                self._versions.pop(name, None)
        for node in nodes:
            self.put(node)
        self._recompute()
        return before ^ self.lost

    def _update(self, node: Object, *, ready: bool) -> frozenset[str]:
        metadata = node["metadata"]
        name, text = metadata["name"], str(metadata.get("resourceVersion", ""))
        version = int(text) if text.isdecimal() else 0
        if version < self._versions.get(name, 0):
            return frozenset()
        self._versions[name] = version
        if self._ready.get(name) is ready:
            return frozenset()
        before = self.lost
        self._ready[name] = ready
        self._recompute()
        return before ^ self.lost

    def _recompute(self) -> None:
        any_ready = any(self._ready.values())
        self.lost = frozenset(name for name, ready in self._ready.items() if not ready) if any_ready else frozenset()
