"""A web server on localhost. Each URL begins with a random token."""

from __future__ import annotations

import re
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from hmac import compare_digest
from http import HTTPStatus
from typing import Final

from aiohttp import web

from tfgpujob.client import ApiError, InvalidNameError
from tfgpujob.ui.job_page import job_page
from tfgpujob.ui.other_pages import MOST_COMPARED, Filter, compare_page, list_page
from tfgpujob.ui.render import STATIC, html, static
from tfgpujob.ui.sources import Source

ADDRESS: Final = "127.0.0.1"
PORT: Final = 8686
_NUMBER: Final = re.compile("[0-9]{1,6}")
HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "img-src data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


@dataclass(frozen=True, slots=True)
class ErrorPage:
    """What templates/error.html and login.html show."""

    problem: str


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def application(source: Source, token: str) -> web.Application:
    """Answers below /TOKEN/; every other path is 404."""

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        shown = request.match_info.get("token", "")
        if request.url.host not in {ADDRESS, "localhost"} or not compare_digest(shown.encode(), token.encode()):
            raise web.HTTPNotFound(headers=HEADERS)
        return await answered(request, handler, depth=request.path.removeprefix(f"/{token}/").count("/"))

    served = web.Application(middlewares=[guard])
    add_pages(served, "/{token}/", lambda _: source)
    return served


def add_pages(
    served: web.Application, root: str, source_of: Callable[[web.Request], Source], *, session: bool = False
) -> None:
    """The pages, below a path that ends with a slash. `session`: as for `html`."""
    shown = partial(page, session=session)

    async def jobs(request: web.Request) -> web.Response:
        found, unknown = await source_of(request).jobs()
        *wanted, text = (request.query.get(name, "") for name in ("namespace", "phase", "text", "first"))
        first = int(text) if _NUMBER.fullmatch(text) else 0
        return shown("list.html", list_page(found, Filter(*wanted), unknown, now(), first))

    async def job(request: web.Request) -> web.Response:
        key = f"{request.match_info['namespace']}/{request.match_info['name']}"
        return shown("job.html", job_page(await source_of(request).seen(key), now()), 2)

    async def compare(request: web.Request) -> web.Response:
        source, keys = source_of(request), dict.fromkeys(request.query.getall("job", [])[:MOST_COMPARED])
        return shown("compare.html", compare_page({key: await source.curves(key) for key in keys}, now()))

    served.router.add_get(root, jobs)
    served.router.add_get(f"{root}jobs/{{namespace}}/{{name}}", job)
    served.router.add_get(f"{root}compare", compare)
    served.router.add_get(f"{root}{{file}}", file)


async def file(request: web.Request) -> web.Response:
    """A file of STATIC."""
    name = request.match_info["file"]
    if name not in STATIC:
        raise web.HTTPNotFound(headers=HEADERS)
    return web.Response(body=static(name), content_type=STATIC[name], charset="utf-8")


async def answered(request: web.Request, handler: Handler, depth: int) -> web.StreamResponse:
    """The handler's answer, or a page that says why there is none. `depth`: slashes below the list."""
    try:
        answer = await handler(request)
    except LookupError:
        answer = page("error.html", ErrorPage("There is no such job."), depth, HTTPStatus.NOT_FOUND)
    except (ApiError, InvalidNameError) as error:
        problem = error.message if isinstance(error, ApiError) and error.message else str(error)
        gone = isinstance(error, InvalidNameError) or error.code == HTTPStatus.NOT_FOUND
        status = HTTPStatus.NOT_FOUND if gone else HTTPStatus.BAD_GATEWAY
        answer = page("error.html", ErrorPage(problem[:2000]), depth, status)
    answer.headers.update(HEADERS)
    return answer


def page(
    template: str, shown: object, depth: int = 0, status: HTTPStatus = HTTPStatus.OK, *, session: bool = False
) -> web.Response:
    """A template as an answer."""
    text = html(template, shown, "../" * depth or "./", session=session)
    return web.Response(text=text, content_type="text/html", status=status)


@asynccontextmanager
async def serving(source: Source, port: int) -> AsyncIterator[str]:
    """Serve while the context is open; yields the URL of the list. Raises OSError when the port is in use. 0: any free
    port.
    """
    token = secrets.token_urlsafe(24)
    runner = web.AppRunner(application(source, token), access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, ADDRESS, port)
        await site.start()
        yield f"http://{ADDRESS}:{runner.addresses[0][1]}/{token}/"
    finally:
        await runner.cleanup()


def now() -> datetime:
    return datetime.now(UTC)
