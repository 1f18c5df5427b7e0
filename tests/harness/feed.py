"""What an operator process sees: lists and watch events, and all that can go wrong with them.

It replaces kopf in shell/watch.py: a list first, then every change, in order, a moment later. After a 410 it lists
again, and deletions in between are not reported.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial

from tests.harness.apiserver import ApiServer
from tests.harness.history import Change
from tests.harness.resources import Object, in_objects, matches

from tfgpujob import names
from tfgpujob.core.observed.snapshot import Kind

DELAY = 0.003
LATE = 20.0
BLIND = 8.0
LAG = 4.0
WATCHED = {
    Kind.JOB: "",
    Kind.POD: names.LABEL_JOB_NAME,
    Kind.SERVICE: names.LABEL_JOB_NAME,
    Kind.NETWORK_POLICY: names.LABEL_JOB_NAME,
    Kind.VOLCANO_POD_GROUP: names.LABEL_JOB_NAME,
    Kind.WORKLOAD_V1BETA1: names.LABEL_JOB_NAME,
    Kind.FLAVOR_V1BETA1: "",
    Kind.NODE: "",
}
KINDS = {in_objects(kind): kind for kind in WATCHED}
Handle = Callable[[Kind, str | None, Object], None]


class Sight(StrEnum):
    """The fate of one watch event."""

    DROPPED = "event-dropped"
    REPEATED = "event-repeated"
    """Told again, long after newer ones."""
    LATE = "event-late"
    """Told only long after newer ones: reordered."""
    GONE = "watch-410"
    """The watch breaks here; some seconds later there is a list, without what was deleted meanwhile."""


@dataclass(slots=True)
class Blindfold:
    """Counts the watch events of all operator processes of a run, and strikes some of them."""

    strikes: dict[int, Sight] = field(default_factory=dict)
    seen: int = 0

    def decide(self) -> Sight | None:
        self.seen += 1
        return self.strikes.get(self.seen - 1)


class Feed:
    """The watches of one process."""

    def __init__(self, server: ApiServer, blindfold: Blindfold, handle: Handle) -> None:
        self._server = server
        self._blindfold = blindfold
        self._handle = handle
        self._blind_until = 0.0
        self._lags_until = 0.0
        self.delay = DELAY
        """Seconds until an event is delivered."""
        self._stopped = False
        self.held_until = 0.0
        """A process that was stopped receives everything when it continues."""

    def start(self, since: int) -> None:
        """List, as of that revision, and follow from there.

        A list of the past comes from an API server that is behind the others, and stays so for a while.
        """
        if since < self._server.history.revision:
            self._lags_until = asyncio.get_running_loop().time() + LAG
        for obj in self._server.history.at(since).values():
            self._tell_listed(obj)
        for change in self._server.history.all_since(since):
            self._follow(change)
        self._server.observers.append(self._follow)

    def stop(self) -> None:
        self._stopped = True
        if self._follow in self._server.observers:
            self._server.observers.remove(self._follow)

    def _follow(self, change: Change) -> None:
        event = _as_seen(change)
        loop = asyncio.get_running_loop()
        if event is None or loop.time() < self._blind_until:
            return
        sight = self._blindfold.decide()
        kind = KINDS[change.kind]
        if sight is Sight.GONE:
            self._blind_until = loop.time() + BLIND
            loop.call_later(BLIND, self._relist)
        if sight in (None, Sight.REPEATED):
            due = max(loop.time() + self.delay, self._lags_until)
            loop.call_at(due, self._tell, kind, event, change.object)
        if sight in (Sight.LATE, Sight.REPEATED):
            loop.call_later(LATE, self._tell, kind, event, change.object)

    def _relist(self) -> None:
        for obj in list(self._server.objects.values()):
            self._tell_listed(obj)

    def _tell_listed(self, obj: Object) -> None:
        kind = KINDS.get(str(obj.get("kind")))
        if kind is not None and _is_selected(kind, obj):
            asyncio.get_running_loop().call_later(DELAY, self._tell, kind, None, obj)

    def _tell(self, kind: Kind, event: str | None, obj: Object) -> None:
        loop = asyncio.get_running_loop()
        if self._stopped:
            return
        if loop.time() < self.held_until:
            loop.call_at(self.held_until, self._tell, kind, event, obj)
            return
        self._handle(kind, event, obj)


def _is_selected(kind: Kind, obj: Object) -> bool:
    selector = WATCHED[kind]
    return not selector or matches(selector, obj["metadata"].get("labels") or {})


def _as_seen(change: Change) -> str | None:
    """The event's type for a watch with our selectors; None when it is not told at all."""
    kind = KINDS.get(change.kind)
    return change.as_seen(partial(_is_selected, kind)) if kind is not None else None
