"""Background tasks that must not die or hang unseen."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass


class TaskDiedError(Exception):
    """A background task that runs for ever has ended. `__cause__` is its exception, if it raised one."""


@dataclass(slots=True)
class _Watched:
    task: asyncio.Task[None]
    silence: float | None
    last_beat: float | None = None


class Supervisor:
    """Starts background tasks and says which of them are in trouble."""

    def __init__(self) -> None:
        self._watched: dict[str, _Watched] = {}

    def start(self, name: str, work: Coroutine[None, None, None], silence: float | None = None) -> None:
        """Run `work` for as long as the process lives.

        `silence`: seconds after the last `beat`, once there was one, at which the task counts as hung; None
        for a task that only waits for others.
        """
        task = asyncio.create_task(work, name=name)
        self._watched[name] = _Watched(task, silence)

    def beat(self, name: str) -> None:
        """The task of this name has just got something done."""
        if name in self._watched:
            self._watched[name].last_beat = asyncio.get_running_loop().time()

    def problems(self) -> list[str]:
        """One line for each task that has ended or is silent for too long; empty when all is well."""
        now = asyncio.get_running_loop().time()
        found = []
        for name, watched in self._watched.items():
            if watched.task.done():
                found.append(f"{name} has ended")
            elif watched.silence is not None and watched.last_beat is not None:
                quiet = now - watched.last_beat
                if quiet > watched.silence:
                    found.append(f"{name} has been silent for {quiet:.0f} s")
        return found

    async def wait(self, stop: asyncio.Event) -> None:
        """Return when `stop` is set; raise TaskDiedError as soon as a task ends."""
        stopping = asyncio.create_task(stop.wait(), name="stop")
        tasks = [watched.task for watched in self._watched.values()]
        try:
            await asyncio.wait([stopping, *tasks], return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
        for name, watched in self._watched.items():
            if watched.task.done():
                error = None if watched.task.cancelled() else watched.task.exception()
                raise TaskDiedError(f"{name} has ended: {error or 'it returned'}") from error

    async def stop_all(self) -> None:
        """Cancel all tasks and wait until they have cleaned up."""
        for name in list(self._watched):
            await self.stop(name)

    async def stop(self, name: str) -> None:
        """Cancel one task and wait until it has cleaned up."""
        watched = self._watched.pop(name, None)
        if watched is not None:
            watched.task.cancel()
            await asyncio.wait({watched.task})
