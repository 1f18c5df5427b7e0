"""Sends an event to a URL when a job has finished, failed, stalled or is degraded: signed CloudEvents 1.0, as JSON.

Delivery is at least once, if the job still exists and an operator leads within RECENT: a new leader sends again what
it finds in the statuses. The id of a change stays the same, so that the receiver can drop repetitions. An event has no
text that a program of the job wrote, and nothing of its spec, so no secret.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from http import HTTPStatus
from typing import Any, Final

import aiohttp
import orjson

from tfgpujob import names
from tfgpujob.core.observed.ownership import is_ours
from tfgpujob.core.observed.snapshot import Object
from tfgpujob.core.status.builder import moment
from tfgpujob.core.status.diagnosis import Diagnosis
from tfgpujob.names import Condition

logger = logging.getLogger(__name__)

TYPES: Final[Mapping[str, str]] = {
    Condition.SUCCEEDED: "dev.tfgpu.job.finished",
    Condition.FAILED: "dev.tfgpu.job.failed",
    Condition.STALLED: "dev.tfgpu.job.stalled",
    Condition.DEGRADED: "dev.tfgpu.job.degraded",
}
"""By the condition that became True."""
SIGNATURE_HEADER: Final = "X-Tfgpu-Signature-256"
"""`sha256=` and the HMAC of the body, in hexadecimal."""
RECENT: Final = timedelta(minutes=15)
"""Older changes are not sent: an earlier leader has sent them."""
MOST_PENDING: Final = 1000
TRIES: Final = 6
"""With pauses of 1, 2, 4, … seconds."""
_SECONDS: Final = 10.0
"""For one request."""
_MOST_KNOWN: Final = 10_000
_AGAIN: Final = frozenset({HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS})

_Event = Mapping[str, Any]


def events_of(job: Object, now: datetime) -> Iterator[_Event]:
    """The events of conditions that became True recently. For a job that runs in another cluster, the operator there
    sends them."""
    if not is_ours(job):
        return
    metadata, status = job["metadata"], job.get("status") or {}
    where = {key: metadata[key] for key in ("namespace", "name", "uid")}
    for condition in status.get("conditions") or ():
        kind, at = TYPES.get(condition["type"]), condition["lastTransitionTime"]
        if kind is None or condition["status"] != "True" or moment(at) < now - RECENT:
            continue
        cause = (status.get("lastFailure") or {}).get("cause")
        known = {"cause": cause} if condition["type"] == Condition.FAILED and cause in {*Diagnosis} else {}
        counts = {key: status.get(key) or 0 for key in ("attempt", "restarts")}
        yield {
            "specversion": "1.0",
            "id": f"{where['uid']}/{condition['type']}/{at}",
            "source": f"/apis/{names.API_VERSION}/namespaces/{where['namespace']}/{names.PLURAL}/{where['name']}",
            "type": kind,
            "time": at,
            "datacontenttype": "application/json",
            "data": {**where, "reason": condition["reason"], **known, **counts},
        }


class Webhook:
    """Its task sends one event at a time. A reconciliation only adds to its bounded queue."""

    def __init__(self, url: str, key: str, now: Callable[[], datetime], *, second: float = 1.0) -> None:
        """`second`: the first pause between two tries."""
        self._url, self._key, self._now, self._second = url, key.encode(), now, second
        self._pending: deque[_Event] = deque()
        self._known: OrderedDict[str, None] = OrderedDict()
        self._news = asyncio.Event()
        self.sent = self.lost = 0

    def look(self, job: Object) -> None:
        """Queue what was not queued yet. Raises nothing: a reconciliation calls it."""
        try:
            for event in events_of(job, self._now()):
                if event["id"] not in self._known:
                    self._known[event["id"]] = None
                    self._add(event)
        except Exception:
            logger.exception("no event for the webhook: the status can't be read")
        while len(self._known) > _MOST_KNOWN:
            self._known.popitem(last=False)

    async def run(self) -> None:
        """Send until cancelled."""
        limit = aiohttp.ClientTimeout(total=_SECONDS)
        jar = aiohttp.DummyCookieJar()
        async with aiohttp.ClientSession(timeout=limit, cookie_jar=jar, trust_env=True) as session:
            while True:
                await self._news.wait()
                self._news.clear()
                while self._pending:
                    # It stays in the queue of a leader that is cancelled and leads again.
                    await self._send(session, self._pending[0])
                    self._pending.popleft()

    def _add(self, event: _Event) -> None:
        if len(self._pending) >= MOST_PENDING:
            self._lose(event, "too many wait")
        else:
            self._pending.append(event)
            self._news.set()

    async def _send(self, session: aiohttp.ClientSession, event: _Event) -> None:
        body, why = orjson.dumps(event), ""
        signature = hmac.new(self._key, body, hashlib.sha256).hexdigest()
        headers = {"Content-Type": "application/cloudevents+json", SIGNATURE_HEADER: f"sha256={signature}"}
        for number in range(TRIES):
            if number:
                await asyncio.sleep(self._second * 2 ** (number - 1))
            try:
                async with session.post(self._url, data=body, headers=headers, allow_redirects=False) as answer:
                    status = answer.status
            except (aiohttp.ClientError, OSError, ValueError) as error:
                # The text of an error may have the URL, which may have a token.
                why = type(error).__name__
                continue
            if HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES:
                self.sent += 1
                return
            why = f"it answered {status}"
            if status < HTTPStatus.INTERNAL_SERVER_ERROR and status not in _AGAIN:
                break
        self._lose(event, why)

    def _lose(self, event: _Event, why: str) -> None:
        self.lost += 1
        logger.warning("webhook event lost", extra={"event": event["id"], "type": event["type"], "why": why})
