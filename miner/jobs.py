"""Work that goes on beside the moves of a session: at most one of each kind, and none of its errors is swallowed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from enum import StrEnum
from typing import Any


class Job(StrEnum):
    """What can go on in the background."""

    FETCH = "fetch"
    SYNC = "sync"
    MAKE = "make"
    DELIVER = "deliver"


class Jobs:
    """Tasks of one session. The event loop owns it."""

    def __init__(self, on_end: Callable[[], None]) -> None:
        """``on_end`` is called whenever a job has ended."""
        self._on_end = on_end
        self._tasks: dict[Job, asyncio.Task[None]] = {}

    def __contains__(self, job: Job) -> bool:
        return job in self._tasks

    def start(self, job: Job, work: Coroutine[Any, Any, None]) -> None:
        """Begin ``job``, of which none may be under way."""
        assert job not in self._tasks, f"{job} is under way"
        task = self._tasks[job] = asyncio.create_task(work, name=job.value)
        task.add_done_callback(lambda _: self._on_end())

    def collect(self) -> None:
        """Forget those that have ended. Raises what one of them ended with."""
        for job, task in list(self._tasks.items()):
            if task.done():
                del self._tasks[job]
                if not task.cancelled():
                    task.result()

    async def cancel(self, job: Job) -> None:
        """End it and wait until it has ended; whatever it raises at that is raised."""
        task = self._tasks.pop(job, None)
        if task is not None:
            task.cancel()
            await asyncio.wait({task})
            if not task.cancelled():
                task.result()

    async def end(self) -> None:
        """Cancel all and wait for them; nobody looks at how they end."""
        tasks, self._tasks = set(self._tasks.values()), {}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for task in tasks:
            if not task.cancelled():
                task.exception()
