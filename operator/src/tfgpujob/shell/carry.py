"""One write each: what the API server's answers to a create or a delete mean for the reconciliation."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from tfgpujob import names
from tfgpujob.core.ownership import Ownership, pod_ownership, service_ownership
from tfgpujob.core.pruned import pruned_fields
from tfgpujob.core.records import trim_pod, trim_service
from tfgpujob.core.snapshot import Create, Delete, Kind, Object, Outcome, Pod, Refusal, Service
from tfgpujob.kube.concurrency import gather_bounded
from tfgpujob.kube.errors import ApiError
from tfgpujob.kube.interface import Objects
from tfgpujob.shell.store import Key, Store

Show = Callable[[tuple[Refusal, ...]], Awaitable[None]]
_Answer = Refusal | ApiError | Ownership | None
"""To a create. None: created. OURS: it was there already."""
PATIENCE: Final = 0.5
"""Seconds for which a refusal waits for the answers to the other creates before it is shown without them."""
PASSING_TRIES: Final = 2
"""How often an answer that may pass by itself (429, 5xx) is tried again before it counts as a refusal."""


@dataclass(frozen=True, slots=True)
class Answers:
    """How the creates of one outcome went."""

    created: int = 0
    adopted: bool = False
    """One was already there, from a write whose answer was lost: the store was behind."""
    refusals: tuple[Refusal, ...] = ()
    trouble: ApiError | None = None
    """A create that got no answer, or one that may be different next time."""


class Hands:
    """Creates and deletes objects of a job, and puts what the API server answers into the store at once."""

    def __init__(self, cluster: Objects, store: Store) -> None:
        self._cluster = cluster
        self._store = store

    async def delete(self, key: Key, deletes: Sequence[Delete]) -> None:
        """Raises ApiError; that an object is already gone, or that another has its name, is no error."""
        await gather_bounded(self._delete(key, delete) for delete in deletes)

    async def create(self, key: Key, job: Object, outcome: Outcome, tries: int, show: Show) -> Answers:
        """Every create is answered or has failed; none of that is raised.

        `tries`: how often in a row this job's reconciliation has failed before. `show` is called with what was refused
        when that has to be shown while other creates are still under way; what it raises is raised.
        """
        alone = [create for create in outcome.creates if create.name == outcome.first]
        rest = [create for create in outcome.creates if create.name != outcome.first]
        results = await self._create_all(key, job, alone, show)
        if not any(isinstance(result, Refusal | ApiError) for result in results):
            results += await self._create_all(key, job, rest, show)
        return _summed(results, [*alone, *rest], tries)

    async def _create_all(self, key: Key, job: Object, creates: Sequence[Create], show: Show) -> list[_Answer]:
        refusals: list[Refusal] = []
        refused, writing = asyncio.Event(), asyncio.Lock()

        async def show_in_time() -> None:
            while True:
                await refused.wait()
                await asyncio.sleep(PATIENCE)
                refused.clear()
                async with writing:
                    await show(tuple(refusals))

        async def one(create: Create) -> _Answer:
            answer = await self._create(key, job, create)
            if isinstance(answer, Refusal):
                refusals.append(answer)
                refused.set()
            return answer

        showing = asyncio.create_task(show_in_time())
        try:
            answers = await gather_bounded(one(create) for create in creates)
            async with writing:
                # What is being written is written to its end: the next write goes on from its version.
                showing.cancel()
        finally:
            showing.cancel()
            (ended,) = await asyncio.gather(showing, return_exceptions=True)
        if isinstance(ended, Exception):
            raise ended
        return answers

    async def _delete(self, key: Key, delete: Delete) -> None:
        try:
            await self._cluster.delete(
                delete.kind,
                key.namespace,
                delete.name,
                uid=delete.uid,
                resource_version=delete.resource_version,
                grace_seconds=0 if delete.force else None,
            )
        except ApiError as error:
            if error.code != 404 and not await self._is_another(key, delete, error):
                raise
            self._store.remove(delete.kind, key.namespace, delete.name, delete.uid)
            return
        if delete.kind is Kind.POD:
            self._store.mark_deleting(key.namespace, delete.name, delete.uid)

    async def _is_another(self, key: Key, delete: Delete, error: ApiError) -> bool:
        """After a conflict over a precondition: whether the object to delete has gone and another has its name.

        A uid that is taken for gone is never seen again, so a conflict of another kind must not pass for this one.
        """
        if error.code != 409:
            return False
        try:
            found = await self._cluster.get(delete.kind, key.namespace, delete.name)
        except ApiError as lookup:
            if lookup.code != 404:
                raise
            return True
        self._store.put(delete.kind, found)
        uid: str = found["metadata"]["uid"]
        return uid != delete.uid

    async def _create(self, key: Key, job: Object, create: Create) -> _Answer:
        try:
            made = await self._cluster.create(create.kind, key.namespace, create.body)
        except ApiError as error:
            if error.code == 409 and error.reason == "AlreadyExists":
                return await self._taken(key, job, create, error)
            if may_pass(error):
                return error
            return _refusal(create, error)
        undone = await self._undo_if_pruned(key, create, made)
        if undone is None:
            self._store.put(create.kind, made)
        return undone

    async def _undo_if_pruned(self, key: Key, create: Create, made: Object) -> Refusal | ApiError | None:
        """A server that drops a field without a word has made another pod than the template asks for: it goes.

        What is true of a role's first pod is true of all, which come from the same template.
        """
        if create.kind is not Kind.POD or not _is_first(create.body) or not await self._drops_fields():
            return None
        lost = pruned_fields(create.body.get("spec"), made.get("spec"), "spec")
        if not lost:
            return None
        try:
            await self._cluster.delete(create.kind, key.namespace, create.name, uid=made["metadata"]["uid"])
        except ApiError as error:
            if error.code != 404:
                return error
        return Refusal(create.kind, create.name, 422, "Invalid", f"this API server does not know {', '.join(lost)}.")

    async def _drops_fields(self) -> bool:
        """While a server doesn't say how old it is, it is looked at closely."""
        try:
            return await self._cluster.drops_fields()
        except ApiError:
            return True

    async def _taken(self, key: Key, job: Object, create: Create, error: ApiError) -> Refusal | ApiError | Ownership:
        try:
            found = await self._cluster.get(create.kind, key.namespace, create.name)
        except ApiError as lookup:
            return lookup if lookup.code != 404 else ApiError(0, "Gone", f"{create.name} has just been deleted")
        uid: str = job["metadata"]["uid"]
        holder: Pod | Service
        if create.kind is Kind.POD:
            holder = trim_pod(found)
            whose = pod_ownership(holder, uid, *_start(create.body))
        else:
            holder = trim_service(found)
            whose = service_ownership(holder, uid)
        if whose is Ownership.OURS:
            self._store.put(create.kind, found, of=key)
            return whose
        self._store.put(create.kind, found)
        return _refusal(create, error, holder)


def may_pass(error: ApiError) -> bool:
    """Whether the same request may succeed in a moment: no answer, too busy, a conflict inside the server."""
    return error.code in {0, 409, 429} or error.code >= 500


def _summed(results: Sequence[_Answer], creates: Sequence[Create], tries: int) -> Answers:
    refusals = [result for result in results if isinstance(result, Refusal)]
    troubles: list[ApiError] = []
    for create, result in zip(creates, results, strict=False):
        if isinstance(result, ApiError):
            if result.code and tries >= PASSING_TRIES:
                refusals.append(_refusal(create, result))
            else:
                troubles.append(result)
    return Answers(
        created=sum(result is None for result in results),
        adopted=Ownership.OURS in results,
        refusals=tuple(refusals),
        trouble=max(troubles, key=lambda error: error.retry_after or 0.0, default=None),
    )


def _refusal(create: Create, error: ApiError, holder: Pod | Service | None = None) -> Refusal:
    return Refusal(create.kind, create.name, error.code, error.reason, error.message, holder)


def _start(body: Object) -> tuple[int, int]:
    """Attempt, and restart of the replica, that a pod is made for."""
    labels = body["metadata"].get("labels") or {}
    return int(labels.get(names.LABEL_ATTEMPT, 0)), int(labels.get(names.LABEL_REPLICA_RESTART, 0))


def _is_first(body: Object) -> bool:
    labels = body["metadata"].get("labels") or {}
    index: str = labels.get(names.LABEL_REPLICA_INDEX, "0")
    return index == "0"
