"""Waiting after a failure: backoff with jitter that starts again after a success, and one line in the log a trouble.

Clock, sleep and randomness are arguments. The same trouble is said once, not at every try. ``Fatal`` is not waited for.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from loguru import logger

from common.errors import Fatal, RemoteError, Retryable
from common.store.retry import RetryPolicy

T = TypeVar("T")
AsyncSleep = Callable[[float], Awaitable[None]]
Uniform = Callable[[], float]
POLICY = RetryPolicy()


class Patience:
    """Backoff of one activity (``what``) against one fault after the other."""

    def __init__(self, what: str, sleep: AsyncSleep, uniform: Uniform = random.random) -> None:
        self._what = what
        self._sleep = sleep
        self._uniform = uniform
        self._failures = 0
        self.trouble = ""
        """What is wrong now; empty when nothing is."""

    async def insist(self, action: Callable[[], Awaitable[T]]) -> T:
        """The result of ``action``, which is repeated until the other end gives one. Raises ``Fatal``."""
        while True:
            try:
                result = await action()
            except RemoteError as error:
                await self.bear(error)
            else:
                self.relax()
                return result

    async def bear(self, error: RemoteError) -> None:
        """Say the trouble if it is new, and wait before the next try. Raises ``error`` itself if it is ``Fatal``."""
        if isinstance(error, Fatal):
            raise error
        if str(error) != self.trouble:
            logger.warning("{}: {}; trying again", self._what, error)
        self.trouble = str(error)
        self._failures += 1
        asked_s = error.retry_after_s if isinstance(error, Retryable) else None
        await self._sleep(POLICY.wait_s(self._failures, asked_s, self._uniform))

    def relax(self) -> None:
        """It worked: the next failure waits briefly again."""
        if self.trouble:
            logger.info("{}: works again", self._what)
        self._failures, self.trouble = 0, ""
