"""Keeping a session's view of the log fresh: at once on the leader's hint, and now and then without one.

The hint only saves waiting: while the leader is silent or lies, polling finds new entries, a new leader among them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from common.blocking import in_thread
from common.errors import Retryable
from common.wire import HeartbeatReply
from miner.context import Context
from miner.follow import LogView, catch_up
from miner.session import Session
from miner.whereabouts import Whereabouts

POLL_HEARTBEATS = 3.0
"""The log is looked at after so many heartbeats without a hint, with jitter."""


class Follower:
    """Reads the log for one session. The event loop owns it."""

    def __init__(self, context: Context, session: Session, where: Whereabouts | None = None) -> None:
        """``where`` follows the run to another bucket; without it there is but one."""
        self._context = context
        self._session = session
        self._where = where
        self._hinted = asyncio.Event()
        self._patience = context.patience("reading the log")

    def heard(self, reply: HeartbeatReply) -> None:
        """Pass the leader's answer on, and look at its hint."""
        if reply.next_seq > self._session.view.state.next_seq:
            self._hinted.set()
        self._session.heard(reply)

    async def run(self) -> None:
        """Never returns."""
        hotkey = self._context.signer.hotkey
        while True:
            await self._hint_or_poll()
            look = partial(catch_up, self._context.log, hotkey, self._session.view)
            self._session.read(await self._patience.insist(partial(self._look, look)))
            if self._where is not None:
                await self._where.follow(self._session.view.state)

    async def _look(self, look: Callable[[], LogView]) -> LogView:
        try:
            return await in_thread(look)
        except Retryable:
            if self._where is not None:
                await self._where.ask_chain()
            raise

    async def _hint_or_poll(self) -> None:
        poll_s = POLL_HEARTBEATS * self._context.spec.round.heartbeat_s * (0.75 + 0.5 * self._context.uniform())
        try:
            # Not wait_for, which may swallow a cancellation that comes with the hint: then nobody would end this task.
            async with asyncio.timeout(poll_s):
                await self._hinted.wait()
        except TimeoutError:
            return
        self._hinted.clear()
