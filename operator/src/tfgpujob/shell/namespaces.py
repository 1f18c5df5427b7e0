"""The namespaces that are served. Objects in others are ignored."""

from __future__ import annotations


class Namespaces:
    """Namespaces that a label selector selects, or all if there is none; without those that are excluded."""

    def __init__(self, excluded: frozenset[str] = frozenset(), *, selecting: bool = False) -> None:
        self._excluded = excluded
        self.selected: set[str] | None = set() if selecting else None
        """The selected namespaces; None without a selector."""
        self.all = not excluded and not selecting

    def serves(self, namespace: str) -> bool:
        return namespace not in self._excluded and (self.selected is None or namespace in self.selected)
