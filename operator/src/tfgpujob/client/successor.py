"""A finished job never runs again: in its place comes another of its name, with its spec and its ConfigMaps."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

from tfgpujob.client.job import Job, check
from tfgpujob.client.server import Server
from tfgpujob.core.observed.snapshot import Object
from tfgpujob.kube import paths
from tfgpujob.kube.errors import CONFLICT, MISSING, ApiError, is_transient

RETRY_SECONDS: Final = 1.0
_KEPT: Final = ("labels", "annotations")


@dataclass(frozen=True, slots=True)
class Successor:
    """`old` is gone, and what is to come in its place is known: from here on, only `create` keeps the job."""

    server: Server
    old: Job
    body: Object
    config_maps: Sequence[Object]
    """Of the old job, as they were."""

    @classmethod
    async def make_room(cls, server: Server, old: Job) -> Self:
        """Delete the old job. Before that it raises InvalidJobError or ApiError, if the new one would be refused.

        Nobody waits for its pods here, for meanwhile there would be no job: the operator starts none beside them.
        """
        body = await _body(server, old)
        config_maps = await _release_config_maps(server, old)
        try:
            await server.delete(paths.job(old.namespace, old.name), uid=old.uid)
        except ApiError as error:
            # Without an answer it may be gone, and would take what belongs to it along.
            for config_map in config_maps if error.code else ():
                await _set_owners(server, config_map, _owners(config_map))
            raise
        await _until_gone(server, old)
        return cls(server, old, body, config_maps)

    async def create(self) -> Job:
        """Tried until there is an answer: with the job would go what its user has written."""
        path, lost = paths.jobs(self.old.namespace), False
        while True:
            try:
                made = Job(await self.server.send("POST", path, body=self.body))
                break
            except ApiError as error:
                if error.code == CONFLICT and lost:
                    made = await self._created_without_answer(error)
                    break
                if not is_transient(error):
                    raise
                lost = True
            await asyncio.sleep(RETRY_SECONDS)
        for config_map in self.config_maps:
            await _set_owners(self.server, config_map, [*_owners(config_map, without=self.old), made.owner_reference])
        return made

    async def _created_without_answer(self, conflict: ApiError) -> Job:
        found = Job(await self.server.send("GET", paths.job(self.old.namespace, self.old.name)))
        if found.raw["spec"] != self.body["spec"]:
            raise conflict
        return found


async def replace(server: Server, old: Job, body: Object, config_maps: Sequence[Object]) -> None:
    """Delete the old job, so that `body` can be created under its name. `config_maps` stay, though they be the old
    job's. Before anything is deleted it raises ApiError, if the new job would be refused.
    """
    await _try(server, body)
    for config_map in config_maps:
        if (owners := _owners(config_map, without=old)) != _owners(config_map):
            await _set_owners(server, config_map, owners)
    await server.delete(paths.job(old.namespace, old.name), uid=old.uid)
    await _until_gone(server, old)


async def _body(server: Server, old: Job) -> Object:
    """The same job to create once more, which the API server would take."""
    kept = {key: old.raw["metadata"][key] for key in _KEPT if key in old.raw["metadata"]}
    body = {**old.raw, "metadata": {"name": old.name, "namespace": old.namespace, **kept}}
    body.pop("status", None)
    check(body)
    await _try(server, body)
    return body


async def _try(server: Server, body: Object) -> None:
    """Raises ApiError if the API server would refuse the job. Under another name, for its own is taken."""
    metadata = {key: value for key, value in body["metadata"].items() if key != "name"}
    trial = {**body, "metadata": {"generateName": "restart-", **metadata}}
    await server.send("POST", paths.jobs(metadata["namespace"]), query={"dryRun": "All"}, body=trial)


async def _release_config_maps(server: Server, old: Job) -> Sequence[Object]:
    """Those of the job, as they were; they belong to it no more, so they outlive it."""
    found = await server.items(paths.core(old.namespace, "configmaps"))
    owned = [obj for obj in found if _owners(obj) != _owners(obj, without=old)]
    for obj in owned:
        await _set_owners(server, obj, _owners(obj, without=old))
    return owned


async def _set_owners(server: Server, config_map: Object, wanted: Sequence[Object]) -> None:
    metadata = config_map["metadata"]
    path = f"{paths.core(metadata['namespace'], 'configmaps')}/{metadata['name']}"
    await server.patch(path, {"metadata": {"ownerReferences": wanted}})


async def _until_gone(server: Server, old: Job) -> None:
    try:
        async for event in server.changes(paths.jobs(old.namespace), old.name):
            if event.type == "DELETED" or event.object["metadata"]["uid"] != old.uid:
                return
    except ApiError as error:
        if error.code != MISSING:
            raise


def _owners(obj: Object, *, without: Job | None = None) -> Sequence[Object]:
    found = obj["metadata"].get("ownerReferences") or ()
    return [owner for owner in found if without is None or owner["uid"] != without.uid]
