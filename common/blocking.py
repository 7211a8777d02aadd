"""Blocking calls in threads that do not hold up the end of the process: beside the event loop, or several at a time;
and how a task ends that nobody waits for any more.

``asyncio.to_thread`` would: its pool is joined at exit, and a transfer on a dead connection takes many seconds to
notice. What runs here writes files only whole or not at all, so that it may be cut off at any moment.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import Any, TypeVar

from loguru import logger

from common.errors import BrigadeError

T = TypeVar("T")


async def in_thread(work: Callable[[], T]) -> T:
    """Run ``work`` in a daemon thread of its own; if the caller is cancelled, it goes on and its result is lost."""
    return await asyncio.wrap_future(_begin(work))


async def leave(*tasks: asyncio.Task[Any] | None) -> None:
    """Cancel what nobody waits for any more, and return when it has ended. What it failed of is told, not raised."""
    begun = [task for task in tasks if task is not None]
    for task in begun:
        task.cancel()
    for task, end in zip(begun, await asyncio.gather(*begun, return_exceptions=True), strict=True):
        if isinstance(end, Exception):
            level = "WARNING" if isinstance(end, BrigadeError) else "ERROR"  # what is none of ours is a bug
            logger.log(level, "the task {} failed before it was left: {!r}", task.get_name(), end)


def in_order(calls: Iterable[tuple[int, Callable[[], T]]], at_a_time: int, most_bytes: int) -> Iterator[T]:
    """The results of ``calls`` in their order, so many at a time, each in a daemon thread of its own.

    Each call comes with the bytes of its result. Begun and not taken yet are at most ``at_a_time`` of them, and results
    of ``most_bytes``, unless one alone is larger; the next begins when one is taken. A call's error is raised in its
    place. What is under way when the caller takes no more goes on to its end, and is lost.
    """
    begun: deque[tuple[int, Future[T]]] = deque()
    held_bytes = 0
    for size_bytes, work in calls:
        while begun and (len(begun) == at_a_time or held_bytes + size_bytes > most_bytes):
            freed_bytes, answer = begun.popleft()
            yield answer.result()
            held_bytes -= freed_bytes
        begun.append((size_bytes, _begin(work)))
        held_bytes += size_bytes
    while begun:
        yield begun.popleft()[1].result()


def _begin(work: Callable[[], T]) -> Future[T]:
    answer: Future[T] = Future()
    answer.set_running_or_notify_cancel()

    def run() -> None:
        try:
            answer.set_result(work())
        except BaseException as error:  # noqa: BLE001 - handed to the caller, whatever it is
            answer.set_exception(error)

    threading.Thread(target=run, name="blocking", daemon=True).start()
    return answer
