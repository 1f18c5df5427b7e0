"""The third source of the pages: live jobs of a cluster, and those that were deleted from the operator's history.

Both with the rights of one caller, whose token the API server is asked about. A namespace in which the caller may not
get TFGPUJobs looks like one without jobs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeVar

from tfgpujob import names
from tfgpujob.client.asynchronous import AsyncClient
from tfgpujob.client.job import Job
from tfgpujob.core.observed.snapshot import Object
from tfgpujob.history.database import Database, HistoryError
from tfgpujob.history.records import Kept
from tfgpujob.kube import paths
from tfgpujob.kube.concurrency import gather_bounded
from tfgpujob.kube.errors import FORBIDDEN, MISSING, ApiError
from tfgpujob.ui.seen import Seen
from tfgpujob.ui.sources import Source

logger = logging.getLogger(__name__)

T = TypeVar("T")
REVIEWS: Final = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_NOT_READ: Final = "jobs that were deleted: the history can't be read now; the log of the page says why"


class WithHistory:
    """One caller's jobs. The key of a deleted one is namespace/name@uid."""

    def __init__(self, live: Source, client: AsyncClient, database: Database | None) -> None:
        """`live`: the source of jobs that still exist. `database` None: no history is kept."""
        self._live, self._client, self._database = live, client, database

    async def may_get(self, namespace: str) -> bool:
        """Whether the caller may get TFGPUJobs there; empty: in all namespaces."""
        wanted = {"verb": "get", "group": names.GROUP, "resource": names.PLURAL, "namespace": namespace}
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": wanted},
        }
        answer = await self._client.ask(REVIEWS, body=review)
        return (answer.get("status") or {}).get("allowed") is True

    async def jobs(self) -> tuple[Mapping[str, Object], Sequence[str]]:
        live, gone, unknown = await self._jobs("", "")
        return {**{f"{job.namespace}/{job.name}": job.raw for job in live}, **gone}, unknown

    async def gone(self, namespace: str, name: str) -> Sequence[Object]:
        """Deleted jobs, the newest first; of all namespaces and names where these are empty."""
        return [*(await self._jobs(namespace, name))[1].values()]

    async def seen(self, key: str) -> Seen:
        return await self._known(key, self._live.seen)

    async def curves(self, key: str) -> Seen:
        return await self._known(key, self._live.curves)

    async def _jobs(self, namespace: str, name: str) -> tuple[Sequence[Job], Mapping[str, Object], Sequence[str]]:
        unknown: list[str] = []
        allowed = await self._allowed(namespace, unknown)
        live: list[Job] = []
        if allowed is None:
            live += await self._client.list(all_namespaces=True, cached=True)
        else:
            for jobs in await gather_bounded(self._list(one, unknown) for one in sorted(allowed)):
                live += jobs
        kept: Mapping[str, Kept] = {}
        if (database := self._database) is not None:
            uids = {job.uid for job in live}
            kept = await self._read(lambda: database.jobs(allowed, uids, name), unknown) or {}
        keys = {
            uid: f"{one.job['metadata']['namespace']}/{one.job['metadata']['name']}@{uid}" for uid, one in kept.items()
        }
        return live, {keys[uid]: one.job for uid, one in kept.items()}, unknown

    async def _allowed(self, namespace: str, unknown: list[str]) -> set[str] | None:
        """Namespaces that the caller may see; None: all."""
        if not namespace and await self.may_get(""):
            return None
        candidates = {namespace or self._client.namespace}
        if not namespace and (database := self._database) is not None:
            candidates |= {*(await self._read(database.namespaces, unknown) or ())}
        ordered = sorted(candidates)
        answers = await gather_bounded(self.may_get(one) for one in ordered)
        allowed = {one for one, may in zip(ordered, answers, strict=True) if may}
        if not namespace:
            unknown.append(
                f"jobs of other namespaces than {', '.join(sorted(allowed)) or 'none'}: you may not get them"
            )
        return allowed

    async def _list(self, namespace: str, unknown: list[str]) -> Sequence[Job]:
        try:
            return await self._client.list(namespace, cached=True)
        except ApiError as error:
            if error.code != FORBIDDEN:
                raise
            unknown.append(f"live jobs of {namespace}: {error.message}")
            return []

    async def _known(self, key: str, of_live: Callable[[str], Awaitable[Seen]]) -> Seen:
        namespace, _, found = key.partition("/")
        name, _, uid = found.partition("@")
        if not uid:
            try:
                return await of_live(key)
            except ApiError as error:
                if error.code != MISSING:
                    raise
        database = self._database
        if database is None or not await self.may_get(paths.checked(namespace)):
            raise LookupError(key)
        unknown: list[str] = []
        kept = await self._read(lambda: database.jobs({namespace}, (), paths.checked(name)), unknown)
        if kept is None:
            raise ApiError(0, "HistoryError", unknown[0])
        uid = uid or next(iter(kept), "")
        one = kept[uid]
        series = await self._read(lambda: database.curves(uid), unknown) or {}
        at = one.job[names.GONE]
        note = f"what came after {at}: the job was deleted, and this is what the operator kept of it; not its events"
        return Seen(job=one.job, series=series, logs=one.logs, unknown=[note, *unknown])

    async def _read(self, read: Callable[[], T], unknown: list[str]) -> T | None:
        try:
            return await asyncio.to_thread(read)
        except HistoryError:
            logger.exception("the history can't be read")
            unknown.append(_NOT_READ)
            return None
