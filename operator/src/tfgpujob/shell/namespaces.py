"""Which namespaces are served. What lies in another one is as if it were not there."""

from __future__ import annotations


class Namespaces:
    """Those that a label selector selects, or all if there is none; less those that are excluded."""

    def __init__(self, excluded: frozenset[str] = frozenset(), *, selecting: bool = False) -> None:
        self._excluded = excluded
        self.selected: set[str] | None = set() if selecting else None
        """By the selector; None without one."""
        self.all = not excluded and not selecting

    def serves(self, namespace: str) -> bool:
        return namespace not in self._excluded and (self.selected is None or namespace in self.selected)
