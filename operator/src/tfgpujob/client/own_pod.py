"""A pod that the client creates with the caller's rights and deletes after use."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from tfgpujob.client.errors import PodError
from tfgpujob.core.observed.snapshot import Object
from tfgpujob.core.observed.trim import trim_pod
from tfgpujob.kube.connection import Connection
from tfgpujob.kube.errors import MISSING, ApiError, is_transient, was_refused
from tfgpujob.units import counted

PARTING_SECONDS: Final = 5.0
"""How long the deletion of the pod is tried."""
_RETRY_SECONDS: Final = 1.0
CONFINED: Final = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
}
"""The security context of its containers."""


@asynccontextmanager
async def made(connection: Connection, pod: Object) -> AsyncIterator[str]:
    """Create the pod and yield its path; delete it at the end. Raises PodError if it can't be created or deleted."""
    pods = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods"
    creating = asyncio.create_task(connection.send("POST", pods, body=pod))
    path = f"{pods}/{pod['metadata']['name']}"
    try:
        await asyncio.shield(creating)
        yield path
    finally:
        await _delete(connection, pod, path, creating)


def waits_for(pod: Object) -> str:
    """What a pod that does not run yet waits for, in Kubernetes' words where it has any."""
    seen = trim_pod(pod)
    why = f"{seen.waiting_reason}: {seen.waiting_message}".strip(": ")
    return why or ("it starts" if seen.phase == "Running" else "its node makes it ready")


async def _delete(connection: Connection, pod: Object, path: str, creating: asyncio.Task[Object]) -> None:
    """Wait for the answer to the creation first: a delete that arrived earlier would find nothing, and the pod would
    stay.
    """
    await asyncio.wait({creating})
    if was_refused(creating.exception()):
        return
    deadline = time.monotonic() + PARTING_SECONDS
    while True:
        try:
            await connection.send("DELETE", path, seconds=PARTING_SECONDS)
        except ApiError as error:
            if error.code == MISSING:
                return
            if not is_transient(error) or time.monotonic() > deadline:
                name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
                hours = counted(pod["spec"]["activeDeadlineSeconds"] // 3600, "hour")
                fix = f"kubectl delete pod {name} -n {namespace}; else it ends in {hours}"
                raise PodError(f"the pod {name} could not be deleted: {error}", fix) from error
            await asyncio.sleep(_RETRY_SECONDS)
        else:
            return
