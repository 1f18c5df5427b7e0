"""The nodes that are lost, known as not ready or deleted, and whether all nodes mount images as volumes.

An unknown node is not lost: events of its pods may arrive before its own. When no node at all is ready, no node counts
as lost: the control plane is then probably partitioned, as Kubernetes' node controller assumes too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from tfgpujob.core.observed.conditions import is_true
from tfgpujob.core.observed.snapshot import Object

_VERSION: Final = re.compile(r"v?(\d{1,9})\.(\d{1,9})")
_KUBELET: Final = (1, 36)
"""The version from which image volumes can't be turned off."""
_RUNTIMES: Final = {"containerd": (2, 2), "cri-o": (1, 33)}
"""The versions from which they mount a folder of an image. Earlier ones of containerd silently mount the whole
image."""


class Nodes:
    """Fed by lists and a watch, in any order. Every change returns the names of the nodes lost or found by it."""

    def __init__(self) -> None:
        self._ready: dict[str, bool] = {}
        self._versions: dict[str, int] = {}
        self._without_image_volumes: set[str] = set()
        self.lost: frozenset[str] = frozenset()

    @property
    def image_volumes(self) -> bool:
        """True if every node mounts folders of images as volumes. False without nodes."""
        return bool(self._ready) and not self._without_image_volumes

    def put(self, node: Object) -> frozenset[str]:
        return self._update(node, ready=is_true(node, "Ready"), mounts_images=_mounts_images(node))

    def remove(self, node: Object) -> frozenset[str]:
        """The node is deleted; its name is kept, because its pods still refer to it."""
        return self._update(node, ready=False, mounts_images=True)

    def known(self) -> frozenset[str]:
        """Names of the nodes that exist or existed."""
        return frozenset(self._ready)

    def sync(self, nodes: Iterable[Object], known: frozenset[str], named: frozenset[str]) -> frozenset[str]:
        """Apply a complete list: a node that was `known` before the request and is not in it is gone.

        `named` are the nodes that pods refer to; other nodes that are gone are forgotten.
        """
        before, present = self.lost, {node["metadata"]["name"] for node in nodes}
        for name in known - present:
            self._ready[name] = False
            self._without_image_volumes.discard(name)
            if name not in named:
                del self._ready[name]
                self._versions.pop(name, None)
        for node in nodes:
            self.put(node)
        self._recompute()
        return before ^ self.lost

    def _update(self, node: Object, *, ready: bool, mounts_images: bool) -> frozenset[str]:
        metadata = node["metadata"]
        name, text = metadata["name"], str(metadata.get("resourceVersion", ""))
        version = int(text) if text.isdecimal() else 0
        if version < self._versions.get(name, 0):
            return frozenset()
        self._versions[name] = version
        (self._without_image_volumes.discard if mounts_images else self._without_image_volumes.add)(name)
        if self._ready.get(name) is ready:
            return frozenset()
        before = self.lost
        self._ready[name] = ready
        self._recompute()
        return before ^ self.lost

    def _recompute(self) -> None:
        any_ready = any(self._ready.values())
        self.lost = frozenset(name for name, ready in self._ready.items() if not ready) if any_ready else frozenset()


def _mounts_images(node: Object) -> bool:
    info = (node.get("status") or {}).get("nodeInfo") or {}
    runtime, _, version = str(info.get("containerRuntimeVersion", "")).partition("://")
    least = _RUNTIMES.get(runtime)
    return least is not None and _at_least(version, least) and _at_least(str(info.get("kubeletVersion", "")), _KUBELET)


def _at_least(version: str, least: tuple[int, int]) -> bool:
    found = _VERSION.match(version)
    return found is not None and (int(found[1]), int(found[2])) >= least
