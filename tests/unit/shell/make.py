"""Jobs and pods for the shell's tests, as an API server gives them."""

from __future__ import annotations

import asyncio
from typing import Any

from tfgpujob import names
from tfgpujob.shell.event_recorder import EventRecorder


def job(name: str = "train", version: int = 1, uid: str = "job-uid", **metadata: Any) -> dict[str, Any]:
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {
            "namespace": "ns",
            "name": name,
            "uid": uid,
            "resourceVersion": str(version),
            **metadata,
        },
        "spec": {},
        "status": {},
    }


def pod(
    name: str = "train-worker-0",
    version: int | None = 1,
    uid: str = "pod-uid",
    *,
    job_name: str | None = "train",
    owner: str = "job-uid",
    **metadata: Any,
) -> dict[str, Any]:
    labels = {names.LABEL_ATTEMPT: "1"}
    if job_name is not None:
        labels[names.LABEL_JOB_NAME] = job_name
    owners = [
        {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "name": "train",
            "uid": owner,
            "controller": True,
        }
    ]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "namespace": "ns",
            "name": name,
            "uid": uid,
            **({} if version is None else {"resourceVersion": str(version)}),
            "labels": labels,
            "ownerReferences": owners if owner else [],
            **metadata,
        },
        "spec": {"containers": [{"name": names.CONTAINER, "image": "example.com/image"}]},
    }


async def flush(recorder: EventRecorder) -> None:
    """Let the recorder write what is pending, as it does when its leader stops."""
    running = asyncio.create_task(recorder.run())
    await asyncio.sleep(0)
    running.cancel()
    await asyncio.wait({running})
