"""GET /progress of one pod. A user's code answers it, so time and size of an answer are limited."""

from __future__ import annotations

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
        headers = {PROGRESS_TOKEN_HEADER: token} if token else None
        try:
            host = f"[{ip}]" if isinstance(ip_address(ip), IPv6Address) else ip
            url = f"http://{host}:{self._port}/progress"
            async with self._session.get(url, headers=headers, allow_redirects=False) as answer:
                return await read_at_most(answer.content, MAX_BYTES) if answer.status == 200 else None
        except (aiohttp.ClientError, OSError, ValueError):
            return None
