"""A connection to an API server: one login, used by requests and streams.

Raw dicts in and out: the Kubernetes client's typed models reject what servers accept (an integer GPU count, a null
eventTime) and take more time than the request.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Any, Final, Self

import aiohttp
import orjson
import yarl

from tfgpujob.core.observed.snapshot import Object
from tfgpujob.kube.decoding import decoded
from tfgpujob.kube.errors import TOO_LONG, ApiError
from tfgpujob.kube.http import read_at_most
from tfgpujob.kube.interface import Credentials, WatchEvent
from tfgpujob.kube.lines import Part, Splitter
from tfgpujob.kube.login import Login

logger = logging.getLogger(__name__)

REQUEST_SECONDS: Final = 20.0
"""The timeout of a request, and the longest time that a write may be in flight after its task was cancelled."""
CONNECT_SECONDS: Final = 5.0
CONNECTIONS: Final = 64
"""For concurrent requests. Each stream, which may last for hours, has another one."""
IDLE_SECONDS: Final = 75.0
"""How long an idle connection is kept, because a new one costs a TLS handshake. The server's limit is 90."""
WATCH_SECONDS: Final = 300
"""How long one watch request runs. The next one continues where it ended."""
SILENCE_SECONDS: Final = 75.0
"""A watch without any line for this long is taken as dead: the API server sends a bookmark every minute."""
READ_AHEAD: Final = 1 << 21
"""Bytes of an answer that are read ahead."""
MERGE_PATCH: Final = "application/merge-patch+json"

Messages = aiohttp.ClientWebSocketResponse
"""A websocket."""


class Connection:
    """A connection pool; an async context manager that closes it."""

    def __init__(self, login: Login, *, compressed: bool = True) -> None:
        """Call it inside a running event loop. `compressed` False: to compress a large answer takes the server longer
        than to send it whole within a cluster.
        """
        self.namespace = login.namespace
        self._login = login
        self._session = _session(CONNECTIONS, {} if compressed else {"Accept-Encoding": "identity"})
        self._streams = _session(0)

    @classmethod
    async def connect(cls, context: str | None = None) -> Self:
        """As `Login.find`."""
        return cls(await Login.find(context))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._streams.close()
        await self._session.close()

    async def authorization(self) -> str | None:
        """As `Login.authorization`."""
        return await self._login.authorization()

    async def credentials(self) -> Credentials:
        """As `Login.credentials`."""
        return await self._login.credentials()

    async def watch_at(self, path: str, query: Mapping[str, str]) -> AsyncIterator[WatchEvent]:
        """Changes of a collection, until the stream ends or is silent for too long, which is no error.

        `query` has the resourceVersion to continue from, and selectors. Raises ApiError; code 410 when the version is
        too old.
        """
        following = {"watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": str(WATCH_SECONDS), **query}
        try:
            async for parts in self.stream(path, following, silence_seconds=SILENCE_SECONDS):
                for part in parts:
                    if (event := _event(part.text)) is not None:
                        yield event
        except aiohttp.SocketTimeoutError:
            # Old servers send no bookmarks while nothing changes, so silence is no error.
            return

    async def stream(
        self,
        path: str,
        query: Mapping[str, str],
        *,
        silence_seconds: float | None = None,
        longest: int | None = None,
        ahead: int = READ_AHEAD,
    ) -> AsyncGenerator[list[Part], None]:
        """The lines of an answer, in batches of those that have arrived. Raises ApiError.

        `longest`: bytes, after which a line arrives in pieces; None: never. `ahead`: bytes that are read ahead.
        """
        limits = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=silence_seconds)
        splitter = Splitter(longest)
        try:
            answer = await self._request(self._streams, "GET", path, query=query, timeout=limits, read_bufsize=ahead)
            async with answer as stream:
                if stream.status != 200:
                    _decoded(stream.status, stream.headers, await stream.read())
                # aiohttp's line reader rejects lines as long as an object may be.
                async for chunk in stream.content.iter_any():
                    if parts := splitter.feed(chunk):
                        yield parts
                if parts := splitter.rest():
                    yield parts
        except aiohttp.SocketTimeoutError:
            raise
        except (aiohttp.ClientError, OSError) as error:
            raise ApiError(0, "Unreachable", f"GET {path}: {error}") from error

    @asynccontextmanager
    async def messages(self, path: str, query: Mapping[str, str], protocol: str) -> AsyncIterator[Messages]:
        """A websocket, closed at the end. Raises ApiError when it is refused."""
        try:
            stream = await self._open(path, query, protocol)
        except aiohttp.WSServerHandshakeError as error:
            raise ApiError(error.status, "Refused", f"{path}: {error.message}") from error
        except (aiohttp.ClientError, OSError) as error:
            raise ApiError(0, "Unreachable", f"{path}: {error}") from error
        async with stream:
            yield stream

    async def send(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Object | None = None,
        seconds: float = REQUEST_SECONDS,
        content_type: str | None = None,
        headers: Mapping[str, str] | None = None,
        most_bytes: int | None = None,
    ) -> Object:
        """One request, and the object that answers it. `content_type` is JSON if None. Raises ApiError.

        `most_bytes`: limit on the answer of a pod, which is not trusted; a longer one is an error.
        """
        limits = aiohttp.ClientTimeout(total=seconds, sock_connect=CONNECT_SECONDS)
        try:
            response = await self._request(
                self._session,
                method,
                path,
                query=query,
                body=body,
                timeout=limits,
                content_type=content_type,
                headers=headers,
            )
            payload = await (read_at_most(response.content, most_bytes) if most_bytes else response.read())
        except TimeoutError as error:
            raise ApiError(0, "Timeout", f"{method} {path}: no answer: {error or f'{seconds:g} s'}") from error
        except (aiohttp.ClientError, OSError) as error:
            raise ApiError(0, "Unreachable", f"{method} {path}: {error}") from error
        if most_bytes is not None and len(payload) > most_bytes:
            response.close()
            raise ApiError(0, TOO_LONG, f"{method} {path}: the answer is longer than {most_bytes} bytes")
        return _decoded(response.status, response.headers, payload)

    async def _open(self, path: str, query: Mapping[str, str], protocol: str) -> Messages:
        number = self._login.number
        try:
            return await self._connect(path, query, protocol)
        except aiohttp.WSServerHandshakeError as refused:
            if refused.status != 401 or not await self._login.renew(number):
                raise
        except aiohttp.ClientSSLError:
            if not await self._login.renew(number):
                raise
        return await self._connect(path, query, protocol)

    async def _connect(self, path: str, query: Mapping[str, str], protocol: str) -> Messages:
        authorization, login = await self._login.authorization(), self._login
        return await self._streams.ws_connect(
            yarl.URL(login.server + path, encoded=True).with_query(query),
            protocols=[protocol],
            # Not `application/json`: a server refuses it for a stream.
            headers={"Accept": "*/*", **({"authorization": authorization} if authorization else {})},
            proxy=login.proxy,
            proxy_headers=login.proxy_headers,
            ssl=login.tls,
            server_hostname=login.tls_server_name,
        )

    async def _request(
        self, session: aiohttp.ClientSession, method: str, path: str, **options: Any
    ) -> aiohttp.ClientResponse:
        """Retried once, when the login was refused and there is another one."""
        number = self._login.number
        try:
            response = await self._request_once(session, method, path, **options)
        except aiohttp.ClientSSLError:
            # The server's certificate is from a newer authority, or ours has expired.
            if not await self._login.renew(number):
                raise
            return await self._request_once(session, method, path, **options)
        if response.status != 401 or not await self._login.renew(number):
            return response
        response.release()
        return await self._request_once(session, method, path, **options)

    async def _request_once(
        self,
        session: aiohttp.ClientSession,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Object | None = None,
        content_type: str | None = None,
        headers: Mapping[str, str] | None = None,
        **options: Any,
    ) -> aiohttp.ClientResponse:
        authorization, login = await self._login.authorization(), self._login
        url = yarl.URL(login.server + path, encoded=True)
        sent = {**(headers or {}), **({"authorization": authorization} if authorization else {})}
        if content_type is not None:
            sent["content-type"] = content_type
        return await session.request(
            method,
            url.with_query(query) if query else url,
            headers=sent,
            data=None if body is None else bytes(memoryview(orjson.dumps(body))),  # without what orjson has reserved
            # Through the proxy a pod answers, which must not redirect us with our rights.
            allow_redirects=False,
            proxy=login.proxy,
            proxy_headers=login.proxy_headers,
            ssl=login.tls,
            server_hostname=login.tls_server_name,
            **options,
        )


def _session(connections: int, headers: Mapping[str, str] = MappingProxyType({})) -> aiohttp.ClientSession:
    """`connections`: the maximum at the same time; 0: no limit."""
    # Without the first two, every request reads the proxy environment and fills a cookie jar.
    return aiohttp.ClientSession(
        trust_env=False,
        cookie_jar=aiohttp.DummyCookieJar(),
        connector=aiohttp.TCPConnector(limit=connections, keepalive_timeout=IDLE_SECONDS),
        headers={"Accept": "application/json", "Content-Type": "application/json", **headers},
        read_bufsize=READ_AHEAD,
    )


def _event(line: bytes) -> WatchEvent | None:
    """None for a line that is no event: the end of a broken stream, or an error that a later list corrects."""
    try:
        answer = decoded(line)
        kind, found = answer["type"], answer["object"]
        if kind != "ERROR":
            found["metadata"]["resourceVersion"]
            return WatchEvent(kind, found)
    except (ValueError, LookupError, TypeError) as error:
        logger.warning("no watch event", extra={"bytes": len(line), "error": str(error)[:200]})
        return None
    raise ApiError(found.get("code", 0), found.get("reason", ""), found.get("message", ""))


def _decoded(status: int, headers: Mapping[str, str], payload: bytes) -> Object:
    try:
        answer = decoded(payload)
    except ValueError:
        answer = None
    if status < 300 and isinstance(answer, dict):
        return answer
    if not isinstance(answer, dict):
        # A proxy, or the server's own filters, answer in plain text.
        answer = {"message": payload[:500].decode(errors="replace").strip()}
    if status < 300:
        raise ApiError(0, "BadAnswer", f"the API server answered {status} with something that is not an object")
    raise ApiError(status, answer.get("reason") or "", answer.get("message") or "", _retry_after(headers, answer))


def _retry_after(headers: Mapping[str, str], answer: Mapping[str, Any]) -> float | None:
    details = answer.get("details") or {}
    try:
        return float(headers.get("Retry-After") or details["retryAfterSeconds"])
    except (KeyError, TypeError, ValueError):
        return None
