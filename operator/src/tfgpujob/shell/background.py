"""Background tasks that must not die or hang unnoticed: the liveness of the process."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass


class TaskDiedError(Exception):
    """A background task that should never end has ended. `__cause__` is its exception, if it raised one."""


@dataclass(slots=True)
class _Task:
    handle: asyncio.Task[None]
    silence: float | None
    last_beat: float | None = None


class BackgroundTasks:
    """Starts background tasks and reports those that ended or hang."""

    def __init__(self) -> None:
        self._tasks: dict[str, _Task] = {}

    def start(self, name: str, work: Coroutine[None, None, None], silence: float | None = None) -> None:
        """Run `work` for as long as the process lives.

        `silence`: seconds after the last `beat`, once there was one, at which the task counts as hung; None
        for a task that only waits for others.
        """
        self._tasks[name] = _Task(asyncio.create_task(work, name=name), silence)

    def beat(self, name: str) -> None:
        """The task of this name has made progress."""
        if name in self._tasks:
            self._tasks[name].last_beat = asyncio.get_running_loop().time()

    def problems(self) -> list[str]:
        """One line for each task that has ended or is silent for too long; empty when all is well."""
        now = asyncio.get_running_loop().time()
        found = []
        for name, task in self._tasks.items():
            if task.handle.done():
                found.append(f"{name} has ended")
            elif task.silence is not None and task.last_beat is not None:
                quiet = now - task.last_beat
                if quiet > task.silence:
                    found.append(f"{name} has been silent for {quiet:.0f} s")
        return found

    async def wait(self, stop: asyncio.Event) -> None:
        """Return when `stop` is set; raise TaskDiedError as soon as a task ends."""
        stopping = asyncio.create_task(stop.wait(), name="stop")
        tasks = [task.handle for task in self._tasks.values()]
        try:
            await asyncio.wait([stopping, *tasks], return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
        for name, task in self._tasks.items():
            if task.handle.done():
                error = None if task.handle.cancelled() else task.handle.exception()
                raise TaskDiedError(f"{name} has ended: {error or 'it returned'}") from error

    async def stop_all(self) -> None:
        """Cancel all tasks and wait until they have cleaned up."""
        for name in list(self._tasks):
            await self.stop(name)

    async def stop(self, name: str) -> None:
        """Cancel one task and wait until it has cleaned up."""
        task = self._tasks.pop(name, None)
        if task is not None:
            task.handle.cancel()
            await asyncio.wait({task.handle})
