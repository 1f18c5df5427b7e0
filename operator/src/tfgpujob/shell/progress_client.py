"""GET /progress and PUT /workers of one pod. A user's code answers, so time and size of an answer are limited."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from ipaddress import IPv6Address, ip_address
from typing import Final, Protocol, Self

import aiohttp

from tfgpujob.core.observed.progress_report import MAX_BYTES
from tfgpujob.kube.http import read_at_most
from tfgpujob.names import PROGRESS_PORT, PROGRESS_TOKEN_HEADER

TIMEOUT_SECONDS: Final = 1.0
"""For the whole of an answer."""


class FetchProgress(Protocol):
    """GET /progress of the pod at this address, which is shown this token, if not empty.

    None: it cannot be reached, or gives no such answer.
    """

    async def __call__(self, ip: str, token: str) -> bytes | None: ...


class PutWorkers(Protocol):
    """PUT /workers of the leader at this address: the HTTP status and the body of its answer.

    None: it cannot be reached.
    """

    async def __call__(self, ip: str, token: str, workers: int) -> tuple[int, bytes] | None: ...


class HttpProgressClient:
    """Over HTTP: no proxy, no cookie, no redirect, no compression, and no connection kept."""

    def __init__(self, port: int = PROGRESS_PORT) -> None:
        """Inside a running event loop."""
        self._port = port
        self._session = aiohttp.ClientSession(
            trust_env=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            connector=aiohttp.TCPConnector(force_close=True),
            timeout=aiohttp.ClientTimeout(total=TIMEOUT_SECONDS),
            headers={"Accept": "application/json", "Accept-Encoding": "identity"},
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def __call__(self, ip: str, token: str) -> bytes | None:
        answer = await self._request("GET", ip, "progress", token)
        return answer[1] if answer is not None and answer[0] == HTTPStatus.OK else None

    async def put_workers(self, ip: str, token: str, workers: int) -> tuple[int, bytes] | None:
        """As `PutWorkers` says."""
        return await self._request("PUT", ip, "workers", token, {"workers": workers})

    async def _request(
        self, method: str, ip: str, path: str, token: str, body: Mapping[str, int] | None = None
    ) -> tuple[int, bytes] | None:
        headers = {PROGRESS_TOKEN_HEADER: token} if token else None
        try:
            host = f"[{ip}]" if isinstance(ip_address(ip), IPv6Address) else ip
            url = f"http://{host}:{self._port}/{path}"
            async with self._session.request(method, url, headers=headers, json=body, allow_redirects=False) as answer:
                return answer.status, await read_at_most(answer.content, MAX_BYTES)
        except (aiohttp.ClientError, OSError, ValueError):
            return None
