"""Restart of a finished job. It never runs again, so a new job of the same name, spec and ConfigMaps replaces it."""

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
    """What is needed to create the new job. The old one is already deleted, so only `create` preserves the user's
    spec.
    """

    server: Server
    old: Job
    body: Object
    config_maps: Sequence[Object]
    """ConfigMaps of the old job, as they were."""

    @classmethod
    async def make_room(cls, server: Server, old: Job) -> Self:
        """Delete the old job. Raises InvalidJobError or ApiError before that, if the new one would be refused.

        This does not wait for the old pods: until the new job exists the spec is only in memory, and the operator
        starts no new pods beside the old ones.
        """
        body = await _body(server, old)
        config_maps = await _release_config_maps(server, old)
        try:
            await server.delete(paths.job(old.namespace, old.name), uid=old.uid)
        except ApiError as error:
            # Without an answer the job may be gone, and its garbage collection would take the ConfigMaps with it.
            for config_map in config_maps if error.code else ():
                await _set_owners(server, config_map, _owners(config_map))
            raise
        await _until_gone(server, old)
        return cls(server, old, body, config_maps)

    async def create(self) -> Job:
        """Create the job. Retried until the API server answers, because the user's spec is kept only here."""
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
    """Delete the old job, so that `body` can be created under its name. `config_maps` are kept, even those that the old
    job owns. Raises ApiError before anything is deleted, if the new job would be refused.
    """
    await _try(server, body)
    for config_map in config_maps:
        if (owners := _owners(config_map, without=old)) != _owners(config_map):
            await _set_owners(server, config_map, owners)
    await server.delete(paths.job(old.namespace, old.name), uid=old.uid)
    await _until_gone(server, old)


async def _body(server: Server, old: Job) -> Object:
    """The job to be created again, as the API server accepts it. It starts, even if the old one was suspended after its
    end."""
    policy = {**(old.raw["spec"].get("runPolicy") or {}), "suspend": False}
    kept = {key: old.raw["metadata"][key] for key in _KEPT if key in old.raw["metadata"]}
    metadata = {"name": old.name, "namespace": old.namespace, **kept}
    body = {**old.raw, "metadata": metadata, "spec": {**old.raw["spec"], "runPolicy": policy}}
    body.pop("status", None)
    check(body)
    await _try(server, body)
    return body


async def _try(server: Server, body: Object) -> None:
    """Raises ApiError if the API server would refuse the job. A dry run under another name, as its own is in use."""
    metadata = {key: value for key, value in body["metadata"].items() if key != "name"}
    trial = {**body, "metadata": {"generateName": "restart-", **metadata}}
    await server.send("POST", paths.jobs(metadata["namespace"]), query={"dryRun": "All"}, body=trial)


async def _release_config_maps(server: Server, old: Job) -> Sequence[Object]:
    """Remove the job from the owners of its ConfigMaps, so that they outlive it. Returns them as they were."""
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
