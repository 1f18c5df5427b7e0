"""What disturbs a round: other work of the machine, and other clients that write to the cluster."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tfgpujob.kube.cluster import KubeCluster
from tfgpujob.kube.errors import ApiError

EVERY_SECONDS = 0.2
STALL_SECONDS = 2.0
"""An answer that takes so long is missed by all who ask, and some of them wait longer before they ask again."""


class DisturbedError(Exception):
    """What was measured doesn't count. The message says what was in the way."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What may change under a round without any of its requests noticing."""

    operator: int
    """The process that is measured."""
    leader: str
    """Who holds the Lease, and since when."""
    not_ready: frozenset[str]
    """Nodes."""
    namespaces: dict[str, str]
    """Their uids; of one that is being deleted, that it is."""
    deleted: tuple[tuple[str, ...], ...]
    """Names of pods that we have not deleted, but are gone, by namespace."""
    cuts: tuple[tuple[str, ...], ...]
    """Why watches of pods were cut so far, by namespace."""
    stalls: Sequence[str]
    """When the API server didn't answer, or not soon."""

    def changes(self, later: Self) -> list[str]:
        """Changes by other clients since."""
        found = []
        # A new process of ours acquires the Lease again.
        if later.leader != self.leader and later.operator == self.operator:
            found.append(f"the Lease was held by {self.leader}, and then by {later.leader}")
        found += [f"node {name} is no longer Ready" for name in sorted(later.not_ready - self.not_ready)]
        found += [f"node {name} became Ready" for name in sorted(self.not_ready - later.not_ready)]
        for name, uid in later.namespaces.items():
            if uid != self.namespaces[name]:
                found.append(f"namespace {name} was deleted")
        gone = _new(self.deleted, later.deleted)
        if gone:
            more = f" and {len(gone) - 1} other pods were" if len(gone) > 1 else " was"
            found.append(f"pod {gone[0]}{more} deleted")
        for troubles in (later.stalls[len(self.stalls) :], _new(self.cuts, later.cuts)):
            if troubles:
                more = f" (and {len(troubles) - 1} times more)" if len(troubles) > 1 else ""
                found.append(f"{troubles[0]}{more}")
        return found


def _new(before: Sequence[Sequence[str]], after: Sequence[Sequence[str]]) -> list[str]:
    return [entry for old, new in zip(before, after, strict=True) for entry in new[len(old) :]]


class Pulse:
    """Asks the API server for what only its database knows, all the time: others' requests fail unseen by us."""

    def __init__(self, cluster: KubeCluster) -> None:
        self._cluster = cluster
        self.stalls: list[str] = []

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self._run(), name="pulse of the API server")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait({task})

    async def beat(self) -> None:
        """One question."""
        started = time.monotonic()
        try:
            await self._cluster.send("GET", "/api/v1/namespaces/default")
        except ApiError as error:
            if error.code == 0 or error.code == 429 or error.code >= 500:
                self.stalls.append(f"the API server did not answer: {error}")
            return
        took = time.monotonic() - started
        if took > STALL_SECONDS:
            self.stalls.append(f"the API server took {took:.1f} s for an answer")

    async def _run(self) -> None:
        while True:
            await self.beat()
            await asyncio.sleep(EVERY_SECONDS)


@dataclass(frozen=True, slots=True)
class Noise:
    """What else the machine did during a round."""

    load: float
    """Load average of the last minute, at the round's end; the benchmark and its cluster are in it."""
    steal: float
    """Percent of the CPU time that the machine below took for others."""


class NoiseMeter:
    """From now on."""

    def __init__(self) -> None:
        self._stolen, self._total = _ticks()

    def read(self) -> Noise:
        stolen, total = _ticks()
        return Noise(os.getloadavg()[0], 100 * (stolen - self._stolen) / max(1, total - self._total))


def _ticks() -> tuple[int, int]:
    """CPU time that was stolen, and all of it, since the machine was started."""
    fields = [int(field) for field in Path("/proc/stat").read_text().partition("\n")[0].split()[1:]]
    # The last two, of guests, are in the first two already.
    return fields[7], sum(fields[:8])
