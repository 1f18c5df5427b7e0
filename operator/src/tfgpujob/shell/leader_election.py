"""Leader election by a Lease: at most one operator writes.

Clocks of two machines are never compared: a standby waits until the Lease has not changed for a whole lease duration by
its own clock, and the leader stops well before that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from datetime import datetime
from typing import Any, Final

from tfgpujob.core.observed.snapshot import Object
from tfgpujob.kube.errors import ApiError
from tfgpujob.kube.interface import Cluster

logger = logging.getLogger(__name__)

LEASE_SECONDS: Final = 15
RENEW_DEADLINE: Final = 10.0
"""The leader stops its workers this long after the start of its last successful renewal."""
RETRY_SECONDS: Final = 2.0
RELEASE_SECONDS: Final = 2.0


class LeaderElector:
    """Runs the work while this process holds the Lease."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        namespace: str,
        name: str,
        identity: str,
        now: Callable[[], datetime],
        beat: Callable[[], None],
    ) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._now = now
        self._beat = beat
        self._lease: Object | None = None
        self._observed_at = 0.0
        self._renewed_at = 0.0
        self.leading = False
        self.took_over = False
        """The Lease was held by another process before: its last writes may not be in our cache yet."""

    async def run(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Lead whenever possible, until cancelled; then the work has ended and the Lease is released.

        `work` never returns. It is cancelled when the Lease is lost, and started again with the next term.
        """
        while True:
            await self._acquire()
            try:
                await self._lead(work)
            except asyncio.CancelledError:
                await self._release()
                raise

    async def _acquire(self) -> None:
        while True:
            self._beat()
            if await self._try_acquire():
                logger.info("leading", extra={"identity": self._identity})
                return
            await asyncio.sleep(RETRY_SECONDS)

    async def _lead(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.leading = True
        tasks = {
            asyncio.create_task(work(), name="work of the leader"),
            asyncio.create_task(self._renew_until_lost(), name="renewal of the Lease"),
        }
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.leading = False
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        for task in done:
            task.result()
        logger.warning("no longer leading: the workers have stopped", extra={"identity": self._identity})

    async def _renew_until_lost(self) -> None:
        """Return when the Lease is lost or cannot be renewed in time."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(RETRY_SECONDS)
            try:
                async with asyncio.timeout_at(self._renewed_at + RENEW_DEADLINE):
                    await self._renew_until_definite()
            except TimeoutError:
                logger.warning("cannot renew the Lease", extra={"seconds": loop.time() - self._renewed_at})
                return
            if not self._held():
                return
            self._beat()

    async def _renew_until_definite(self) -> None:
        while True:
            if await self._renew():
                return
            await asyncio.sleep(RETRY_SECONDS / 2)

    async def _renew(self) -> bool:
        """True when the answer is definite: renewed, or held by another."""
        started = asyncio.get_running_loop().time()
        try:
            assert self._lease is not None
            self._observe(await self._cluster.replace_lease(self._namespace, self._body(self._lease)))
        except ApiError as error:
            if error.code not in {404, 409}:
                logger.warning("renewing the Lease failed", extra={"error": str(error)})
                return False
            return await self._read() and not self._held()
        self._renewed_at = started
        return True

    async def _try_acquire(self) -> bool:
        """Try once to acquire the Lease."""
        started = asyncio.get_running_loop().time()
        if not await self._read():
            return False
        try:
            if self._lease is None:
                written = await self._cluster.create_lease(self._namespace, self._body(None))
            elif self._held() or self._expired(started):
                written = await self._cluster.replace_lease(self._namespace, self._body(self._lease))
            else:
                return False
        except ApiError as error:
            if error.code != 409:
                logger.warning("cannot take the Lease", extra={"error": str(error)})
            return False
        self.took_over = self._lease is not None and not self._held()
        self._observe(written)
        self._renewed_at = started
        return True

    async def _read(self) -> bool:
        """Read the Lease; False when that failed."""
        try:
            self._observe(await self._cluster.get_lease(self._namespace, self._name))
        except ApiError as error:
            if error.code != 404:
                logger.warning("cannot read the Lease", extra={"error": str(error)})
                return False
            self._lease = None
        return True

    def _observe(self, lease: Object) -> None:
        if self._lease is None or _version(self._lease) != _version(lease):
            self._observed_at = asyncio.get_running_loop().time()
        self._lease = lease

    def _held(self) -> bool:
        return self._lease is not None and self._lease["spec"].get("holderIdentity") == self._identity

    def _expired(self, now: float) -> bool:
        assert self._lease is not None
        spec = self._lease["spec"]
        return not spec.get("holderIdentity") or now >= self._observed_at + spec.get("leaseDurationSeconds", 0)

    async def _release(self) -> None:
        """Release the Lease so that a standby can acquire it at once. Best effort: otherwise the Lease expires.

        An uninstall removes the right to do so before it stops the operator. Then no standby acquires it, as intended.
        """
        if self._lease is None or not self._held():
            return
        body = self._body(self._lease)
        body["spec"] = {**body["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}
        try:
            async with asyncio.timeout(RELEASE_SECONDS):
                await self._cluster.replace_lease(self._namespace, body)
        except (ApiError, TimeoutError) as error:
            uninstalled = isinstance(error, ApiError) and error.code == 403
            level = logging.INFO if uninstalled else logging.WARNING
            logger.log(level, "the Lease is left to run out", extra={"error": str(error)})

    def _body(self, held: Object | None) -> dict[str, Any]:
        stamp = self._now().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        metadata: dict[str, Any] = {"name": self._name, "namespace": self._namespace}
        before: Object = {}
        if held is not None:
            metadata["resourceVersion"] = _version(held)
            before = held["spec"]
        again = before.get("holderIdentity") == self._identity
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": metadata,
            "spec": {
                "holderIdentity": self._identity,
                "leaseDurationSeconds": LEASE_SECONDS,
                "acquireTime": before.get("acquireTime", stamp) if again else stamp,
                "renewTime": stamp,
                "leaseTransitions": before.get("leaseTransitions", 0) + (0 if again or not before else 1),
            },
        }


def _version(lease: Object) -> str:
    version: str = lease["metadata"]["resourceVersion"]
    return version
