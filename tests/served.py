"""Stand-ins for servers: a handler at a port of this machine, and a kubeconfig that leads somewhere."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import yaml
from aiohttp import web

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def served(handle: Handler, tls: ssl.SSLContext | None = None, port: int = 0) -> AsyncIterator[str]:
    """`handle` answers every request; gives the address. `port` 0: a free one."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port, ssl_context=tls).start()
    try:
        yield f"http{'s' if tls else ''}://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def kubeconfig(file: Path, server: str, user: Mapping[str, Any], **cluster: Any) -> Path:
    """Writes one whose only context is this user of this server, and returns it. `cluster`: its other fields, with _
    for -.
    """
    more = {key.replace("_", "-"): value for key, value in cluster.items()}
    config = {
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me", "namespace": "default"}}],
        "clusters": [{"name": "here", "cluster": {"server": server, **more}}],
        "users": [{"name": "me", "user": dict(user)}],
    }
    file.write_text(yaml.safe_dump(config))
    return file
