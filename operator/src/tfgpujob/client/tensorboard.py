"""TensorBoard on a job, for as long as it is iterated: a pod beside its volume, and a forwarded port."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final

from tfgpujob.client.errors import TensorBoardError
from tfgpujob.client.forward import answers, forwarded
from tfgpujob.client.viewer import LIFETIME_SECONDS, PORT
from tfgpujob.core.observed.snapshot import Object
from tfgpujob.core.observed.trim import trim_pod
from tfgpujob.kube.connection import Connection
from tfgpujob.kube.errors import ApiError, is_transient

POLL_SECONDS: Final = 1.0
SLOW_POLL_SECONDS: Final = 5.0
"""Once it answers."""
PARTING_SECONDS: Final = 5.0
"""How long it is tried to delete the pod."""
_GONE: Final = 404


@dataclass(frozen=True, slots=True)
class TensorBoard:
    """How it stands with the viewer."""

    pod: str
    url: str | None
    """Where it answers on this machine; None while it does not yet."""
    waiting: str
    """What it waits for; empty when it answers."""


async def run_viewer(connection: Connection, viewer: Object, local: int) -> AsyncGenerator[TensorBoard]:
    """Make the pod and lead this machine's port to it; each change of how it stands, until the pod is gone.

    The pod is deleted when nobody iterates any more. Raises TensorBoardError when the port is taken, when the pod ends
    by itself, and when it can't be deleted.
    """
    name, namespace = viewer["metadata"]["name"], viewer["metadata"]["namespace"]
    pods = f"/api/v1/namespaces/{namespace}/pods"
    path = f"{pods}/{name}"
    async with AsyncExitStack() as stack:
        try:
            port = await stack.enter_async_context(forwarded(connection, path, PORT, local))
        except OSError as error:
            problem = f"port {local}: {os.strerror(error.errno or 0)}"
            raise TensorBoardError(problem, "choose another with --port; 0 takes any free one") from error
        creating = asyncio.create_task(connection.send("POST", pods, body=viewer))
        stack.push_async_callback(_delete, connection, viewer, path, creating)
        await asyncio.shield(creating)
        said = TensorBoard(name, None, "")
        while True:
            try:
                pod = await connection.send("GET", path)
                _must_live(pod)
                if said.url is None:
                    ready = pod["status"].get("phase") == "Running" and await answers(connection, path, PORT)
                    now = TensorBoard(name, f"http://127.0.0.1:{port}", "") if ready else _waits(pod)
                    if now != said:
                        yield now
                    said = now
            except ApiError as error:
                if error.code == _GONE:
                    return
                if not is_transient(error):
                    raise
            await asyncio.sleep(SLOW_POLL_SECONDS if said.url else POLL_SECONDS)


async def _delete(connection: Connection, viewer: Object, path: str, creating: asyncio.Task[Object]) -> None:
    """Once its creation is answered: a delete that overtook it would find nothing, and the pod would stay."""
    await asyncio.wait({creating})
    if _was_refused(creating.exception()):
        return
    deadline = time.monotonic() + PARTING_SECONDS
    while True:
        try:
            await connection.send("DELETE", path, seconds=PARTING_SECONDS)
        except ApiError as error:
            if error.code == _GONE:
                return
            if not is_transient(error) or time.monotonic() > deadline:
                pod, namespace = viewer["metadata"]["name"], viewer["metadata"]["namespace"]
                fix = f"kubectl delete pod {pod} -n {namespace}; else it ends in {LIFETIME_SECONDS // 3600} hours"
                raise TensorBoardError(f"the pod {pod} could not be deleted: {error}", fix) from error
            await asyncio.sleep(POLL_SECONDS)
        else:
            return


def _was_refused(error: BaseException | None) -> bool:
    """For certain: a request without an answer may have made the pod all the same."""
    return isinstance(error, ApiError) and not is_transient(error)


def _waits(pod: Object) -> TensorBoard:
    seen = trim_pod(pod)
    why = f"{seen.waiting_reason}: {seen.waiting_message}".strip(": ")
    return TensorBoard(seen.name, None, why or ("it starts" if seen.phase == "Running" else "its node makes it ready"))


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
