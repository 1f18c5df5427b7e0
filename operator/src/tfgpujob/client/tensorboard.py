"""TensorBoard on a job: a pod that mounts the job's volume, and a forwarded port."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final

from tfgpujob.client.errors import TensorBoardError
from tfgpujob.client.forward import answers, forwarded
from tfgpujob.client.own_pod import made, waits_for
from tfgpujob.client.viewer import PORT
from tfgpujob.core.observed.snapshot import Object
from tfgpujob.kube.connection import Connection
from tfgpujob.kube.errors import ApiError, is_transient

POLL_SECONDS: Final = 1.0
SLOW_POLL_SECONDS: Final = 5.0
"""Used once the pod answers."""
_GONE: Final = 404


@dataclass(frozen=True, slots=True)
class TensorBoard:
    """State of the viewer."""

    pod: str
    url: str | None
    """Address on this machine; None until TensorBoard answers."""
    waiting: str
    """What it waits for; empty when it answers."""


async def run_viewer(connection: Connection, viewer: Object, local: int) -> AsyncGenerator[TensorBoard]:
    """Create the pod, forward a local port to it, and yield each change of its state until the pod is gone.

    The pod is deleted when the iteration ends. Raises TensorBoardError when the port is in use or the pod ends by
    itself, PodError when the pod can't be deleted.
    """
    name, namespace = viewer["metadata"]["name"], viewer["metadata"]["namespace"]
    path = f"/api/v1/namespaces/{namespace}/pods/{name}"
    async with AsyncExitStack() as stack:
        try:
            port = await stack.enter_async_context(forwarded(connection, path, PORT, local))
        except OSError as error:
            problem = f"port {local}: {os.strerror(error.errno or 0)}"
            raise TensorBoardError(problem, "choose another with --port; 0 takes any free one") from error
        await stack.enter_async_context(made(connection, viewer))
        said = TensorBoard(name, None, "")
        while True:
            try:
                pod = await connection.send("GET", path)
                _must_live(pod)
                if said.url is None:
                    ready = pod["status"].get("phase") == "Running" and await answers(connection, path, PORT)
                    now = (
                        TensorBoard(name, f"http://127.0.0.1:{port}", "")
                        if ready
                        else TensorBoard(name, None, waits_for(pod))
                    )
                    if now != said:
                        yield now
                    said = now
            except ApiError as error:
                if error.code == _GONE:
                    return
                if not is_transient(error):
                    raise
            await asyncio.sleep(SLOW_POLL_SECONDS if said.url else POLL_SECONDS)


def _must_live(pod: Object) -> None:
    status = pod["status"]
    if status.get("phase") not in {"Failed", "Succeeded"}:
        return
    states = [container["state"] for container in status.get("containerStatuses") or ()]
    last = [str((state.get("terminated") or {}).get("message") or "").strip().rpartition("\n")[2] for state in states]
    words = status.get("message") or " ".join(last) or "without a word"
    problem = f"the pod {pod['metadata']['name']} has ended: {words}"
    program = pod["spec"]["containers"][0]["command"][0]
    raise TensorBoardError(problem, f"if its image has no {program}, name one with --image; else try again")
