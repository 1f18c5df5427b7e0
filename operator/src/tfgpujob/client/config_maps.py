"""The ConfigMaps that a job is submitted with: created before the job, then owned by it.

If the job were created first, its pods could run code that another user has put under that name.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from tfgpujob.client.job import Job
from tfgpujob.client.server import Server
from tfgpujob.client.successor import replace
from tfgpujob.core.observed.snapshot import Object
from tfgpujob.kube.errors import CONFLICT, ApiError, was_refused

_CONTENT: Final = ("data", "binaryData")


class _Held(NamedTuple):
    path: str
    obj: Object
    is_new: bool


async def submit_with(
    server: Server, jobs_path: str, body: Object, maps: Sequence[tuple[str, Object]], *, old: Job | None = None
) -> Job:
    """Create the ConfigMaps, each with the path of its collection, then the job, and make it their owner. The `old` job
    of that name is deleted first.

    Raises ApiError. After a refusal neither the job nor any ConfigMap that was created here is left.
    """
    held: list[_Held] = []
    made: Job | None = None
    try:
        for path, obj in maps:
            held.append(await _created(server, path, obj))
        if old is not None:
            await replace(server, old, body, [config_map.obj for config_map in held])
        made = Job(await server.send("POST", jobs_path, body=body))
        for config_map in held:
            found = config_map.obj["metadata"].get("ownerReferences") or []
            owners = [owner for owner in found if old is None or owner["uid"] != old.uid]
            await server.patch(config_map.path, {"metadata": {"ownerReferences": [*owners, made.owner_reference]}})
    except BaseException as error:
        # Also when this is interrupted: ConfigMaps without an owner would stay when the job is deleted.
        with contextlib.suppress(ApiError):
            if made is not None:
                await server.delete(f"{jobs_path}/{made.name}", uid=made.uid)
            if made is not None or was_refused(error):
                await _deleted(server, held)
        raise
    return made


async def _created(server: Server, collection: str, obj: Object) -> _Held:
    """An existing ConfigMap is used only if it is immutable and has the same data.

    A new one has no owner until the job exists: one that is gone, as in a ConfigMap read earlier, would end it.
    """
    metadata = {key: value for key, value in (obj.get("metadata") or {}).items() if key != "ownerReferences"}
    path = f"{collection}/{metadata.get('name')}"
    try:
        return _Held(path, await server.send("POST", collection, body={**obj, "metadata": metadata}), is_new=True)
    except ApiError as error:
        if error.code != CONFLICT:
            raise
        found = await server.send("GET", path)
        if not (found.get("immutable") and obj.get("immutable") and _content(found) == _content(obj)):
            raise
        return _Held(path, found, is_new=False)


async def _deleted(server: Server, held: Sequence[_Held]) -> None:
    for config_map in held:
        if config_map.is_new:
            await server.delete(config_map.path, uid=config_map.obj["metadata"]["uid"])


def _content(obj: Object) -> Any:
    return [obj.get(key) or {} for key in _CONTENT]
