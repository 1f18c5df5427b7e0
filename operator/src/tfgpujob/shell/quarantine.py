"""Jobs that are quarantined because their reconciliation is slow: measured here, decided by the core."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import datetime, timedelta

from tfgpujob.core.observed.snapshot import Kind, Object
from tfgpujob.core.policies.quarantine import SHARE, SLOW, SetAside, restored, set_aside
from tfgpujob.shell.store import Key
from tfgpujob.shell.troubled import Troubled

logger = logging.getLogger(__name__)


class Quarantine:
    def __init__(self, named: Troubled, cpu: Callable[[], float] = time.thread_time) -> None:
        """`named`: the list that /readyz and the metrics show."""
        self.cpu = cpu
        """Seconds of CPU time of this thread."""
        self._named = named
        self._set_aside: dict[Key, SetAside] = {}
        self._slow_once: set[Key] = set()
        """Jobs that were slow once, perhaps because of a garbage collection; that does not happen twice in a row."""
        self._free_at: datetime | None = None
        """No job is tried before this time: a thousand quarantined jobs would otherwise take all the time."""

    def why(self, key: Key, job: Object, now: datetime) -> str:
        """Why the job is quarantined now, for its owner; empty: it is not."""
        if key not in self._set_aside and (found := restored(job, now)) is not None:
            self._add(key, found)
        due = self.due(key, job)
        return SLOW if due is not None and now < due else ""

    def due(self, key: Key, job: Object) -> datetime | None:
        """When the job is tried again; None: it is not quarantined."""
        found = self._set_aside.get(key)
        if found is None:
            return None
        due = found.due(job["metadata"].get("generation", 0))
        return due if self._free_at is None else max(due, self._free_at)

    def measured(self, key: Key, job: Object, seconds: float, now: datetime) -> bool:
        """True if the job is quarantined, after its reconciliation has taken this much CPU time."""
        before = self._set_aside.get(key)
        found = set_aside(before, seconds, job["metadata"].get("generation", 0), now)
        if before is not None:
            self._free_at = now + timedelta(seconds=SHARE * seconds)
        if found is None:
            self.forget(key)
        elif before is None and key not in self._slow_once:
            self._slow_once.add(key)
            return False
        else:
            self._add(key, found)
            logger.warning("set aside", extra={"job": f"{key.namespace}/{key.name}", "cpu_seconds": round(seconds, 3)})
        return found is not None

    def forget(self, key: Key) -> None:
        """The job is gone, or small again."""
        self._slow_once.discard(key)
        if self._set_aside.pop(key, None) is not None:
            self._named.discard(Kind.JOB, *key)

    def clear(self) -> None:
        """Another operator leads; the next term reads the jobs' status."""
        for key in [*self._set_aside]:
            self.forget(key)

    def _add(self, key: Key, found: SetAside) -> None:
        self._set_aside[key] = found
        self._named.add(Kind.JOB, *key, SLOW)
