"""Objects that can't be processed: each is skipped, and listed here for /readyz and the metrics."""

from __future__ import annotations

from typing import Final

from tfgpujob.core.observed.snapshot import Kind, Object

MAX_NAMED: Final = 1000
"""Objects that are remembered by name; all are counted."""
SHOWN: Final = 20


class Troubled:
    """The current ones, by kind, namespace and name, with the reason."""

    def __init__(self) -> None:
        self._found: dict[tuple[Kind, str, str], str] = {}
        self.total = 0
        """Their number since the process started."""

    def add(self, kind: Kind, namespace: str, name: str, why: str) -> None:
        self.total += 1
        if len(self._found) < MAX_NAMED:
            self._found[kind, namespace, name] = why

    def discard(self, kind: Kind, namespace: str, name: str) -> None:
        """The object is valid again, or gone."""
        self._found.pop((kind, namespace, name), None)

    def discard_all(self, namespace: str) -> None:
        """The namespace is not served any more."""
        self._found = {key: why for key, why in self._found.items() if key[1] != namespace}

    def clear(self) -> None:
        """Forget the names; the count stays."""
        self._found.clear()

    def __len__(self) -> int:
        return len(self._found)

    def lines(self) -> list[str]:
        """One line for each, up to SHOWN, and the number of the others."""
        found = list(self._found.items())
        lines = [f"{kind} {namespace}/{name}: {why}" for (kind, namespace, name), why in found[:SHOWN]]
        return [*lines, f"and {len(found) - SHOWN} more"] if len(found) > SHOWN else lines


def place(obj: Object) -> tuple[str, str]:
    """Namespace and name of an object of any shape."""
    metadata = obj.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    return str(metadata.get("namespace", ""))[:253], str(metadata.get("name", ""))[:253]
