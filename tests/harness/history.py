"""The revisions of the server: what watches and chunked lists are served from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.harness.refusals import bad_request
from tests.harness.resources import Object

from tfgpujob.kube.errors import ApiError


@dataclass(frozen=True, slots=True)
class Change:
    """One revision of the server: what a watch sees, and who asked for it."""

    revision: int
    type: str
    """ADDED, MODIFIED or DELETED."""
    kind: str
    old: Object | None
    object: Object
    """As it is now; on DELETED as it was last, with the revision of its deletion."""
    by: str
    """Who asked: an operator process, or an actor."""
    verb: str

    def as_seen(self, selected: Callable[[Object], bool]) -> str | None:
        """The event's type for a watch that selects; None when it is not told at all."""
        now, before = selected(self.object), self.old is not None and selected(self.old)
        if self.type == "DELETED":
            return "DELETED" if now else None
        if now:
            return "MODIFIED" if before else "ADDED"
        return "DELETED" if before else None


class History:
    """One revision after the other, from the last compaction on."""

    def __init__(self) -> None:
        self.revision = 0
        self.compacted = 0
        self._log: list[Change] = []
        self._all: list[Change] = []
        self._pages: dict[str, tuple[int, list[Object]]] = {}

    def append(self, change: Change) -> None:
        self.revision = change.revision
        self._log.append(change)
        self._all.append(change)

    def compact(self) -> None:
        """Forget: watches that are behind get 410 and must list again; so must lists under way."""
        self.compacted = self.revision
        self._log.clear()

    def since(self, revision: int, kind: str, namespace: str | None = None) -> list[Change]:
        """What a watch from that revision delivers up to now; 410 when part of it is compacted away."""
        if revision < self.compacted:
            raise ApiError(410, "Expired", f"too old resource version: {revision} ({self.compacted})")
        return [
            change
            for change in self._log[revision - self.compacted :]
            if change.kind == kind and namespace in (None, change.object["metadata"].get("namespace"))
        ]

    def all_since(self, revision: int) -> list[Change]:
        """Every change after that revision, compacted or not: for who looks at the server from outside."""
        return self._all[revision:]

    def at(self, revision: int) -> dict[str, Object]:
        """All objects by uid as they were at that revision."""
        objects: dict[str, Object] = {}
        for change in self._all[:revision]:
            uid = change.object["metadata"]["uid"]
            if change.type == "DELETED":
                del objects[uid]
            else:
                objects[uid] = change.object
        return objects

    def first_page(self, items: list[Object], limit: int) -> tuple[list[Object], int, str]:
        """The first `limit` items (0: all), their revision, and the token of the next page, "" at the end."""
        return self._page(items, self.revision, limit)

    def next_page(self, token: str, limit: int) -> tuple[list[Object], int, str]:
        """All pages show the state of the first; a token from before the last compaction gives 410."""
        if token not in self._pages:
            raise bad_request("continue key is not valid")
        revision, rest = self._pages[token]
        if revision < self.compacted:
            raise ApiError(410, "Expired", "The provided continue parameter is too old to display a …")
        return self._page(rest, revision, limit)

    def _page(self, items: list[Object], revision: int, limit: int) -> tuple[list[Object], int, str]:
        if not limit or len(items) <= limit:
            return items, revision, ""
        token = f"{revision}/{len(self._pages)}"
        self._pages[token] = (revision, items[limit:])
        return items[:limit], revision, token
