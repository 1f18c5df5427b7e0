"""The pages in the operator's pod, as a process of their own that has no rights: every caller brings a token.

A token comes in a header, or once in a form; then it is kept in memory for an hour, and the browser has a cookie.
"""

from __future__ import annotations

import asyncio
import gc
import os
import re
import secrets
import signal
import sys
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from aiohttp import web

from tfgpujob.client.asynchronous import AsyncClient
from tfgpujob.history.database import Database
from tfgpujob.kube import paths
from tfgpujob.kube.connection import Connection
from tfgpujob.kube.errors import ApiError, InvalidNameError
from tfgpujob.kube.login import Login
from tfgpujob.names import TOKEN_HEADER
from tfgpujob.shell import log_format
from tfgpujob.ui.history import WithHistory
from tfgpujob.ui.render import STATIC
from tfgpujob.ui.server import HEADERS, ErrorPage, Handler, add_pages, answered, page
from tfgpujob.ui.sources import Cluster

PORT: Final = 8687
SESSION_SECONDS: Final = 3600
MOST_SESSIONS: Final = 100
COOKIE: Final = "tfgpu"
_MAX_BODY: Final = 32 << 10
_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/=-]{1,16384}")
_AUTHORITY: Final = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt"
_FOREIGN: Final = "This form was sent by another site."
_SOURCE: Final = web.RequestKey("source", WithHistory)


@dataclass(frozen=True, slots=True)
class _Caller:
    connection: Connection
    source: WithHistory
    until: float


class Pages:
    """The application, and who is logged in."""

    def __init__(self, server: str, authority: str, database: Database | None) -> None:
        """`server`: URL of the API server. `authority`: file with the certificate that it is checked with."""
        self._server, self._authority, self._database = server, authority, database
        self._sessions: OrderedDict[str, _Caller] = OrderedDict()

    def application(self) -> web.Application:
        served = web.Application(middlewares=[self._guard], client_max_size=_MAX_BODY)
        served.router.add_get("/healthz", _healthz)
        served.router.add_post("/login", self._login)
        served.router.add_post("/logout", self._logout)
        served.router.add_get("/history", _history)
        add_pages(served, "/", lambda request: request[_SOURCE], session=True)
        served.on_cleanup.append(self._close)
        return served

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        depth = request.path.count("/") - 1
        if request.path in {"/healthz", "/login", "/logout", *(f"/{name}" for name in STATIC)}:
            return await answered(request, handler, depth)
        try:
            async with self._caller(request) as source:
                if source is None:
                    return _ask(depth, "")
                request[_SOURCE] = source
                return await answered(request, _refusing(handler), depth)
        except _RefusedError:
            await self._forget(request.cookies.get(COOKIE, ""))
            return _ask(depth, "The API server does not accept this token, or not any more.")

    @asynccontextmanager
    async def _caller(self, request: web.Request) -> AsyncIterator[WithHistory | None]:
        """None: no token is known."""
        shown: str = request.headers.get(TOKEN_HEADER) or request.headers.get("Authorization") or ""
        token = shown.removeprefix("Bearer ")
        if not shown:
            await self._forget_old()
            session = self._sessions.get(request.cookies.get(COOKIE, ""))
            yield session.source if session is not None else None
        elif not _TOKEN.fullmatch(token):
            yield None
        else:
            caller = await self._connected(token, "default")
            async with caller.connection:
                yield caller.source

    async def _connected(self, token: str, namespace: str) -> _Caller:
        connection = Connection(await Login.of_token(self._server, self._authority, token), compressed=False)
        client = AsyncClient(connection, namespace)
        source = WithHistory(Cluster(client, connection), client, self._database)
        return _Caller(connection, source, time.monotonic() + SESSION_SECONDS)

    async def _login(self, request: web.Request) -> web.StreamResponse:
        if not _same_origin(request.headers):
            return _ask(0, _FOREIGN, HTTPStatus.FORBIDDEN)
        form = await request.post()
        token, namespace = str(form.get("token", "")).strip(), str(form.get("namespace", "")).strip() or "default"
        if not _TOKEN.fullmatch(token):
            return _ask(0, "This is no token: paste one, as kubectl create token prints it.")
        try:
            caller = await self._connected(token, paths.checked(namespace))
            await caller.source.may_get(namespace)
        except InvalidNameError:
            return _ask(0, "This is no name of a namespace.")
        except ApiError as error:
            await caller.connection.__aexit__()
            refused = error.code == HTTPStatus.UNAUTHORIZED
            return _ask(0, "The API server does not accept this token." if refused else error.message[:500])
        number = secrets.token_urlsafe(32)
        self._sessions[number] = caller
        while len(self._sessions) > MOST_SESSIONS:
            await self._forget(next(iter(self._sessions)))
        answer = web.Response(status=HTTPStatus.SEE_OTHER, headers={"Location": "./"})
        encrypted = request.secure or request.headers.get("X-Forwarded-Proto") == "https"
        answer.set_cookie(COOKIE, number, max_age=SESSION_SECONDS, httponly=True, samesite="Strict", secure=encrypted)
        return answer

    async def _logout(self, request: web.Request) -> web.StreamResponse:
        if not _same_origin(request.headers):
            return _ask(0, _FOREIGN, HTTPStatus.FORBIDDEN)
        await self._forget(request.cookies.get(COOKIE, ""))
        answer = web.Response(status=HTTPStatus.SEE_OTHER, headers={"Location": "./"})
        answer.del_cookie(COOKIE)
        return answer

    async def _forget_old(self) -> None:
        while self._sessions and next(iter(self._sessions.values())).until < time.monotonic():
            await self._forget(next(iter(self._sessions)))

    async def _forget(self, number: str) -> None:
        if (session := self._sessions.pop(number, None)) is not None:
            await session.connection.__aexit__()

    async def _close(self, _: web.Application) -> None:
        for number in [*self._sessions]:
            await self._forget(number)


class _RefusedError(Exception):
    """The API server does not know the token."""


def _refusing(handler: Handler) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        try:
            return await handler(request)
        except ApiError as error:
            if error.code == HTTPStatus.UNAUTHORIZED:
                raise _RefusedError from error
            raise

    return handle


async def _healthz(_: web.Request) -> web.Response:
    return web.Response(text="ok")


async def _history(request: web.Request) -> web.Response:
    """Deleted jobs as JSON, for `tfgpu history` and `tfgpu describe`."""
    namespace, name = (
        paths.checked(request.query[key]) if request.query.get(key) else "" for key in ("namespace", "name")
    )
    return web.json_response({"items": await request[_SOURCE].gone(namespace, name)})


def _ask(depth: int, problem: str, status: HTTPStatus = HTTPStatus.UNAUTHORIZED) -> web.Response:
    answer = page("login.html", ErrorPage(problem), depth, status)
    answer.headers.update(HEADERS)
    return answer


def _same_origin(headers: Mapping[str, str]) -> bool:
    """Browsers say who sends a form; what is no browser has no cookies that another site could use."""
    if (site := headers.get("Sec-Fetch-Site")) is not None:
        return site in {"same-origin", "none"}
    origin = headers.get("Origin")
    return origin is None or origin.partition("://")[2] == headers.get("Host")


async def serve(pages: Pages, port: int) -> None:
    """Until SIGTERM or SIGINT."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    runner = web.AppRunner(pages.application(), access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, port=port).start()
        await stop.wait()
    finally:
        await runner.cleanup()


def main() -> None:
    """`python -m tfgpujob.ui.in_pod`, with the variables HISTORY_DATABASE, UI_PORT and Kubernetes' own."""
    log_format.set_up("json", "INFO")
    gc.set_threshold(20_000)  # as the operator: a list of jobs is many objects that stay until it is shown
    host, url = os.environ.get("KUBERNETES_SERVICE_HOST", ""), os.environ.get("HISTORY_DATABASE", "")
    if not host:
        sys.exit("KUBERNETES_SERVICE_HOST is not set: this process runs in a pod; elsewhere use tfgpu ui")
    try:
        database = Database(url) if url else None
    except ValueError as error:
        sys.exit(f"HISTORY_DATABASE can't be used: {error}")
    host = f"[{host}]" if ":" in host else host
    server = f"https://{host}:{os.environ.get('KUBERNETES_SERVICE_PORT_HTTPS', '443')}"
    asyncio.run(serve(Pages(server, _AUTHORITY, database), int(os.environ.get("UI_PORT", PORT))))


if __name__ == "__main__":
    main()
