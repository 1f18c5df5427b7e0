"""Requests another number of workers from the leaders of gangs while a resize in place is in progress: PUT /workers.

Answers go into the cache, and the job is requeued as after a watch event. A request repeats the persisted intent, so
its order does not matter. While the answers change it is sent every second; for a job that waits for capacity ever more
rarely. Only the leading operator sends it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from tfgpujob.core.membership.leader import LeaderRequest, leader_request
from tfgpujob.core.observed.snapshot import LeaderAnswer, Refused, Silent
from tfgpujob.core.observed.workers_answer import parse_answer
from tfgpujob.shell.metrics import Metrics
from tfgpujob.shell.pod_poller import PodPoller
from tfgpujob.shell.progress_client import PutWorkers
from tfgpujob.shell.store import Key, Store

LEAST: Final = 1.0
"""Seconds between two requests to a leader."""
MOST: Final = 30.0
PART: Final = 0.1
"""The wait for the next request, as a share of the time without a change."""
SILENT_AFTER: Final = 60.0
"""Seconds without an answer after which the leader counts as silent. Between two rounds the trainer does not listen for
some."""


@dataclass(slots=True)
class _Asked:
    """The requests to one leader."""

    request: LeaderRequest | None = None
    answer: LeaderAnswer | None = None
    changed: float = 0.0
    """When the request or the answer last changed."""
    due: float = 0.0
    unanswered_since: float | None = None
    under_way: bool = False


class ResizePoller:
    """Puts the answers of leaders into the cache."""

    def __init__(self, store: Store, put: PutWorkers, changed: Callable[[Key], None], metrics: Metrics) -> None:
        self._store = store
        self._put = put
        self._changed = changed
        self._metrics = metrics
        self._poller = PodPoller(store, "PUT /workers")
        self._asked: dict[Key, _Asked] = {}
        self._noticed = asyncio.Event()

    def notice(self) -> None:
        """A resize has begun: send its request now, without waiting for the next round."""
        self._noticed.set()

    async def run(self) -> None:
        """Runs until cancelled."""
        clock = asyncio.get_running_loop().time
        async with asyncio.TaskGroup() as asking:
            while True:
                requests = {key: found for key in self._store.resizing() if (found := self._request(key)) is not None}
                self._asked = {key: self._asked.get(key, _Asked()) for key in requests}
                for key, request in requests.items():
                    asked = self._asked[key]
                    if not asked.under_way and (clock() >= asked.due or request != asked.request):
                        asked.under_way = True
                        asking.create_task(self._ask(key, asked))
                if requests:
                    await asyncio.sleep(LEAST)
                else:
                    await self._until_noticed()

    async def _until_noticed(self) -> None:
        self._noticed.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(MOST):
                await self._noticed.wait()

    async def _ask(self, key: Key, asked: _Asked) -> None:
        try:
            async with self._poller.turn(key):
                request = self._request(key)
                if request is not None:
                    await self._ask_leader(key, asked, request)
        finally:
            asked.under_way = False

    async def _ask_leader(self, key: Key, asked: _Asked, request: LeaderRequest) -> None:
        if asked.request is None or asked.request.question != request.question:
            asked.answer = asked.unanswered_since = None
        told = await self._put(request.leader.ip, request.leader.progress_token, request.workers)
        now = asyncio.get_running_loop().time()
        found = parse_answer(request.leader.uid, request.question, *told) if told is not None else None
        refused = found is not None and isinstance(found.said, Refused)
        self._metrics.asked_to_resize("unreachable" if found is None else "refused" if refused else "ok")
        waits = found is None and not request.replaces
        asked.unanswered_since = asked.unanswered_since or now if waits else None
        answer = found or asked.answer
        if asked.unanswered_since is not None and now - asked.unanswered_since >= SILENT_AFTER:
            answer = LeaderAnswer(request.leader.uid, request.question, Silent())
        if answer is not None and self._store.store_answer(key, answer, len(told[1]) if told else 0):
            self._changed(key)
        if (request, answer) != (asked.request, asked.answer):
            asked.changed = now
        asked.request, asked.answer = request, answer
        asked.due = now + min(MOST, max(LEAST, PART * (now - asked.changed)))

    def _request(self, key: Key) -> LeaderRequest | None:
        return self._poller.find(key, leader_request)
