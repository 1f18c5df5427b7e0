"""An API server that only knows who may see which namespace, and the operator's page in front of it."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from tfgpujob.core.observed.snapshot import Object
from tfgpujob.history.database import Database
from tfgpujob.ui.history import REVIEWS
from tfgpujob.ui.in_pod import Pages

ANY = "*"
AUTHORITY = ssl.get_default_verify_paths().cafile or ssl.get_default_verify_paths().openssl_cafile
JOBS = "/apis/tfgpu.dev/v1alpha1"


class Api:
    """`rights`: the namespaces of each token; ANY: all. It remembers which tokens it was shown."""

    def __init__(self, rights: Mapping[str, Sequence[str]], jobs: Sequence[Object] = ()) -> None:
        self.rights, self.jobs = dict(rights), jobs
        self.shown: list[str] = []

    def _may(self, token: str, namespace: str) -> bool:
        return ANY in self.rights[token] or namespace in self.rights[token]

    async def handle(self, request: web.Request) -> web.StreamResponse:
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        self.shown.append(token)
        assert request.headers["Accept-Encoding"] == "identity", "to compress takes longer than to send"
        if token not in self.rights:
            return web.json_response({"message": "Unauthorized", "code": 401}, status=401)
        if request.path == REVIEWS:
            wanted = (await request.json())["spec"]["resourceAttributes"]
            assert (wanted["verb"], wanted["resource"]) == ("get", "tfgpujobs")
            return web.json_response({"status": {"allowed": self._may(token, wanted["namespace"])}})
        parts = request.path.removeprefix(JOBS).strip("/").split("/")
        namespace = parts[1] if parts[0] == "namespaces" else ""
        if not self._may(token, namespace):
            message = f'tfgpujobs.tfgpu.dev is forbidden: cannot list in "{namespace}"'
            return web.json_response({"message": message, "code": 403}, status=403)
        found = [job for job in self.jobs if namespace in {"", job["metadata"]["namespace"]}]
        if parts[0] == "namespaces" and len(parts) == 4:
            named = [job for job in found if job["metadata"]["name"] == parts[3]]
            missing: Any = {"message": f'tfgpujobs.tfgpu.dev "{parts[3]}" not found', "code": 404}
            return web.json_response(named[0]) if named else web.json_response(missing, status=404)
        return web.json_response({"items": found, "metadata": {"resourceVersion": "1"}})


@asynccontextmanager
async def page(api: Api, database: Database | None) -> AsyncIterator[TestClient[web.Request, web.Application]]:
    """A client of the page, without a cookie or token of its own."""
    served = web.Application()
    served.router.add_route("*", "/{path:.*}", api.handle)
    async with TestServer(served) as server:
        pages = Pages(str(server.make_url("")), AUTHORITY, database)
        async with TestClient(TestServer(pages.application())) as client:
            yield client


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}
