"""Heartbeats: one every few seconds in every phase, whatever else the miner does.

A reply brings the leader's order, a hint where the log stands, and the name of the leading process. It is never a
truth of its own: a miner acts on the log. When nobody answers, the heart backs off with jitter and goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from loguru import logger

from common import timeouts
from common.clock import Clock
from common.errors import RemoteError, Retryable
from common.units import Hotkey
from common.wire import Heartbeat, HeartbeatReply
from miner.discovery import LeaderLink
from miner.meter import UploadMeter
from miner.patience import AsyncSleep, Patience


class Heart:
    """Beats until it is cancelled. The event loop owns it."""

    def __init__(
        self,
        link: LeaderLink,
        meter: UploadMeter,
        clock: Clock,
        sleep: AsyncSleep,
        interval_s: float,
        patience: Patience,
        leader: Callable[[], Hotkey | None],
        describe: Callable[[], Heartbeat],
        on_reply: Callable[[Heartbeat, HeartbeatReply], None],
    ) -> None:
        """``on_reply`` is told what was sent, and the answer to it."""
        self._link = link
        self._meter = meter
        self._clock = clock
        self._sleep = sleep
        self._interval_s = interval_s
        self._patience = patience
        self._leader = leader
        self._describe = describe
        self._on_reply = on_reply

    async def run(self) -> None:
        """Never returns."""
        while True:
            started_s = await self._patience.insist(self._beat_or_doubt)
            await self._sleep(max(0.0, self._interval_s - (self._clock.monotonic_s() - started_s)))

    async def farewell(self) -> None:
        """One heartbeat of a miner that goes, whatever becomes of it: the leader need not wait for the silence."""
        try:
            async with asyncio.timeout(timeouts.GOODBYE_S):
                await self._beat()
        except (TimeoutError, RemoteError) as error:
            logger.debug("the leader was not told of the end: {}", str(error) or "no answer in time")

    async def _beat_or_doubt(self) -> float:
        """When the heartbeat that was answered had begun."""
        started_s = self._clock.monotonic_s()
        try:
            await self._beat()
        except RemoteError:
            self._link.doubt()
            raise
        return started_s

    async def _beat(self) -> None:
        leader = self._leader()
        if leader is None:
            raise Retryable("no validator leads the run yet")
        client = await self._link.client(leader)
        with self._meter.heartbeat_first():
            beat = self._describe()
            reply = await client.heartbeat(beat)
        self._on_reply(beat, reply)
