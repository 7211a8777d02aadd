"""Blocking calls beside the event loop, in threads that do not hold up the end of the process.

``asyncio.to_thread`` would: its pool is joined at exit, and a transfer on a dead connection takes many seconds to
notice. What runs here writes files only whole or not at all, so that it may be cut off at any moment.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


async def in_thread(work: Callable[[], T]) -> T:
    """Run ``work`` in a daemon thread of its own; if the caller is cancelled, it goes on and its result is lost."""
    answer: Future[T] = Future()
    answer.set_running_or_notify_cancel()

    def run() -> None:
        try:
            answer.set_result(work())
        except BaseException as error:  # noqa: BLE001 - handed to the caller, whatever it is
            answer.set_exception(error)

    threading.Thread(target=run, name="blocking", daemon=True).start()
    return await asyncio.wrap_future(answer)
