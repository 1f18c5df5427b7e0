"""Applies the creates and deletes of an Outcome, and interprets the API server's answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tfgpujob import names
from tfgpujob.core.observed.ownership import Ownership, claim_ownership, dependent_ownership, pod_ownership
from tfgpujob.core.observed.snapshot import (
    WORKLOADS,
    Creation,
    Delete,
    Dependent,
    Kind,
    Object,
    Outcome,
    Pod,
    Refusal,
    StatusWrite,
)
from tfgpujob.core.observed.trim import trim_dependent, trim_pod
from tfgpujob.core.pods.dropped_fields import dropped_fields
from tfgpujob.kube.concurrency import ByNamespace, gather_bounded
from tfgpujob.kube.errors import ApiError
from tfgpujob.kube.interface import Objects
from tfgpujob.shell.store import Key, Store

ReportRefusals = Callable[[tuple[Refusal, ...]], Awaitable[None]]
_Result = Refusal | ApiError | Ownership | None
"""Result of a create. None: created. OURS: it existed already."""
REPORT_DELAY: Final = 0.5
"""Seconds that a refusal waits for the answers to the other creates before it is reported without them."""
TRANSIENT_RETRIES: Final = 2
"""How often a transient error (429, 5xx) is retried before it counts as a refusal."""


@dataclass(frozen=True, slots=True)
class CreateResults:
    """How the creates of one outcome went."""

    created: int = 0
    adopted: bool = False
    """An object existed already, from a write whose answer was lost: the cache was stale."""
    refusals: tuple[Refusal, ...] = ()
    error: ApiError | None = None
    """A create got no answer, or a transient error: the reconciliation is retried."""


class ObjectWriter:
    """Creates and deletes objects of a job, and puts the API server's answers into the cache at once."""

    def __init__(self, cluster: Objects, store: Store) -> None:
        self._cluster = cluster
        self._store = store
        self.turns = ByNamespace()
        self._building = asyncio.Lock()

    async def delete(self, key: Key, deletes: Sequence[Delete]) -> None:
        """Raises ApiError. An object that is gone, or whose name another object has, is no error."""
        await gather_bounded((self._delete(key, delete) for delete in deletes), self.turns[key.namespace])

    async def create(
        self, key: Key, job: Object, outcome: Outcome, failures: int, report: ReportRefusals
    ) -> CreateResults:
        """Returns when every create was answered or has failed; raises none of these errors.

        `failures`: how often in a row this job's reconciliation has failed. `report` is called with the refusals that
        must be written into the status while other creates are still in flight; its exceptions are raised.
        """
        results: list[_Result] = []
        stages = outcome.stages
        for stage in stages:
            if stage and not any(isinstance(result, Refusal | ApiError) for result in results):
                results += await self._create_all(key, job, stage, report)
        return _summed(results, [create for stage in stages for create in stage], failures)

    async def write_status(self, key: Key, write: StatusWrite) -> bool:
        """True if it was written; False if the cache was stale, and has been refreshed. Raises ApiError."""
        name = write.body["metadata"]["name"]
        try:
            stored = await self._cluster.replace_status(write.body, write.kind)
        except ApiError as error:
            if error.code not in {404, 409}:
                raise
        else:
            self._store.put(write.kind, stored)
            return True
        try:
            self._store.put(write.kind, await self._cluster.get(write.kind, key.namespace, name))
        except ApiError as error:
            if error.code != 404:
                raise
            self._store.remove(write.kind, key.namespace, name, write.body["metadata"]["uid"])
        return False

    async def _create_all(
        self, key: Key, job: Object, creates: Sequence[Creation], report: ReportRefusals
    ) -> list[_Result]:
        refusals: list[Refusal] = []
        refused, writing = asyncio.Event(), asyncio.Lock()

        async def report_in_time() -> None:
            while True:
                await refused.wait()
                await asyncio.sleep(REPORT_DELAY)
                refused.clear()
                async with writing:
                    await report(tuple(refusals))

        async def one(create: Creation) -> _Result:
            answer = await self._create(key, job, create)
            if isinstance(answer, Refusal):
                refusals.append(answer)
                refused.set()
            return answer

        reporting = asyncio.create_task(report_in_time())
        try:
            answers = await gather_bounded((one(create) for create in creates), self.turns[key.namespace])
            async with writing:
                # A status write in flight is finished: the next one needs its resourceVersion.
                reporting.cancel()
        finally:
            reporting.cancel()
            (ended,) = await asyncio.gather(reporting, return_exceptions=True)
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
        elif delete.kind in WORKLOADS:
            # Until the watch event arrives it would still count as admitted.
            self._store.mark_workload_deleting(key, delete.kind, delete.uid)

    async def _is_another(self, key: Key, delete: Delete, error: ApiError) -> bool:
        """After a conflict over a precondition: True if the object to delete is gone and another has its name.

        The cache then ignores the uid as deleted, so no other conflict may be mistaken for this one.
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

    async def _create(self, key: Key, job: Object, create: Creation) -> _Result:
        for needed in create.needs:
            try:
                refused = await self._ensure(key, job, needed)
            except ApiError as error:
                if is_retryable(error):
                    return error
                refused = _refusal(needed, error)
            if refused is not None:
                return replace(refused, needed_by=create.name)
        async with self._building:
            body = create.body
            # Yield to the event loop after each: a large object takes milliseconds to build and to encode.
            await asyncio.sleep(0)
        try:
            made = await self._cluster.create(create.kind, key.namespace, body)
        except ApiError as error:
            if error.code == 409 and error.reason == "AlreadyExists":
                return await self._taken(key, job, create, body, error)
            if is_retryable(error):
                return error
            return _refusal(create, error)
        undone = await self._undo_if_pruned(key, create, body, made)
        if undone is None:
            self._store.put(create.kind, made)
        return undone

    async def _ensure(self, key: Key, job: Object, create: Creation) -> Refusal | None:
        """Create a prerequisite of a pod unless it exists. The cache does not keep it. Raises ApiError.

        A GET comes first, because an exhausted quota refuses to create even what exists.
        """
        taken = ApiError(409, "AlreadyExists", f"{create.name} is there already")
        found = await self._find(key, create)
        if found is None:
            try:
                await self._cluster.create(create.kind, key.namespace, create.body)
            except ApiError as error:
                # A create whose answer was lost, or one by the previous leader.
                if error.code != 409 or error.reason != "AlreadyExists":
                    raise
                found = await self._find(key, create)
                if found is None:
                    raise ApiError(0, "Gone", f"{create.name} has just been deleted") from error
            else:
                return None
        holder = trim_dependent(found)
        whose = claim_ownership(holder, job)
        if whose is Ownership.OURS:
            return None
        return _refusal(create, taken, holder if whose is Ownership.FOREIGN else None)

    async def _find(self, key: Key, create: Creation) -> Object | None:
        try:
            return await self._cluster.get(create.kind, key.namespace, create.name)
        except ApiError as error:
            if error.code != 404:
                raise
            return None

    async def _undo_if_pruned(
        self, key: Key, create: Creation, body: Object, made: Object
    ) -> Refusal | ApiError | None:
        """Delete the pod if the server has pruned unknown fields, so that it differs from the template.

        Only the first pod of a role is checked; the others come from the same template.
        """
        if create.kind is not Kind.POD or not _is_first(body) or not await self._drops_fields():
            return None
        lost = dropped_fields(body.get("spec"), made.get("spec"), "spec")
        if not lost:
            return None
        try:
            await self._cluster.delete(create.kind, key.namespace, create.name, uid=made["metadata"]["uid"])
        except ApiError as error:
            if error.code != 404:
                return error
        return Refusal(create.kind, create.name, 422, "Invalid", f"this API server does not know {', '.join(lost)}.")

    async def _drops_fields(self) -> bool:
        """True also while the server's version is unknown: pods are then checked for dropped fields."""
        try:
            return await self._cluster.drops_fields()
        except ApiError:
            return True

    async def _taken(
        self, key: Key, job: Object, create: Creation, body: Object, error: ApiError
    ) -> Refusal | ApiError | Ownership:
        try:
            found = await self._cluster.get(create.kind, key.namespace, create.name)
        except ApiError as lookup:
            return lookup if lookup.code != 404 else ApiError(0, "Gone", f"{create.name} has just been deleted")
        uid: str = job["metadata"]["uid"]
        holder: Pod | Dependent
        if create.kind is Kind.POD:
            holder = trim_pod(found)
            whose = pod_ownership(holder, uid, *_start(body))
        else:
            holder = trim_dependent(found)
            whose = dependent_ownership(holder, uid, _start(body)[0])
        if whose is Ownership.OURS:
            self._store.put(create.kind, found, of=key)
            return whose
        self._store.put(create.kind, found)
        return _refusal(create, error, holder)


def is_retryable(error: ApiError) -> bool:
    """Whether the same request may succeed in a moment: no answer, too busy, a conflict inside the server."""
    return error.code in {0, 409, 429} or error.code >= 500


def _summed(results: Sequence[_Result], creates: Sequence[Creation], failures: int) -> CreateResults:
    refusals = [result for result in results if isinstance(result, Refusal)]
    errors: list[ApiError] = []
    for create, result in zip(creates, results, strict=False):
        if isinstance(result, ApiError):
            if result.code and failures >= TRANSIENT_RETRIES:
                refusals.append(_refusal(create, result))
            else:
                errors.append(result)
    return CreateResults(
        created=sum(result is None for result in results),
        adopted=Ownership.OURS in results,
        refusals=tuple(refusals),
        error=max(errors, key=lambda error: error.retry_after or 0.0, default=None),
    )


def _refusal(create: Creation, error: ApiError, holder: Pod | Dependent | None = None) -> Refusal:
    return Refusal(create.kind, create.name, error.code, error.reason, error.message, holder)


def _start(body: Object) -> tuple[int, int]:
    """Attempt and replica restart that a pod is created for; a pod group has only the attempt, other kinds neither."""
    labels = body["metadata"].get("labels") or {}
    return int(labels.get(names.LABEL_ATTEMPT, 0)), int(labels.get(names.LABEL_REPLICA_RESTART, 0))


def _is_first(body: Object) -> bool:
    labels = body["metadata"].get("labels") or {}
    index: str = labels.get(names.LABEL_REPLICA_INDEX, "0")
    return index == "0"
