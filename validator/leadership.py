"""Taking and keeping the lead: lease first, then ``leader_changed`` in the log, renewals until somebody else has it.

Invariants: this process leads exactly while the log's last ``leader_changed`` names its instance and nobody swapped its
lease; losing either is no error, the process follows and may try again. The log decides, the lease only says when to
try.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from loguru import logger

from common.blocking import in_thread
from common.clock import Clock
from common.errors import Rejected
from common.runlog.entries import LeaderChanged
from common.runlog.lease import LeaseKeeper, LeaseLost
from common.runlog.writer import LostSlot
from common.timeouts import LEASE_RENEW_S
from validator.journal import Journal


class Leadership:
    """One process's claim to lead."""

    def __init__(
        self,
        keeper: LeaseKeeper,
        journal: Journal,
        clock: Clock,
        refusal: Callable[[], Awaitable[str]] | None = None,
    ) -> None:
        """``refusal`` tells why nobody may build on the log as it was read; an empty text when nothing is wrong."""
        self._keeper = keeper
        self._journal = journal
        self._clock = clock
        self._refusal = refusal
        self._busy = asyncio.Lock()
        self._renewed_s = 0.0
        self.term = 0
        self.leading = False
        self.reason = "not tried yet"

    @property
    def instance(self) -> str:
        """Nonce of this process."""
        return self._keeper.instance

    @property
    def lease_since_s(self) -> float | None:
        """When the lease was first seen as it is now, on our clock; None before the first look."""
        return self._keeper.seen_since_s

    def sure(self) -> bool:
        """Whether nobody can have taken the lead unseen: the lease was written less than its time ago."""
        return self.leading and self._keeper.sure()

    async def try_lead(self) -> bool:
        """One attempt; ``reason`` tells what came of it. ``Retryable`` when the store stays away."""
        async with self._busy:
            state = await self._journal.catch_up()
            if not self._journal.may_lead():
                why = "the run does not let this hotkey lead: its owner changes that (brigade run leaders)"
            else:
                why = await self._refusal() if self._refusal else ""
            if why:
                await self._watch(why)
                return False
            term = state.term + 1
            decision = await in_thread(lambda: self._keeper.acquire(term))
            self.reason = decision.reason
            if self._keeper.held is None or not decision.take:
                return False
            self._renewed_s = self._clock.monotonic_s()
            self.leading = await self._begin(term)
            return self.leading

    async def stand_by(self, reason: str) -> None:
        """Look at log and lease without trying for the lead, for this reason. ``Retryable`` when the store is away."""
        async with self._busy:
            await self._journal.catch_up()
            await self._watch(reason)

    async def _watch(self, reason: str) -> None:
        """Who does not try still sees whether somebody leads: a lease that nobody looks at seems dead."""
        await in_thread(self._keeper.watch)
        self.reason = reason

    async def _begin(self, term: int) -> bool:
        try:
            await self._journal.append(LeaderChanged(self.instance), f"leading term {term}: {self.reason}", term)
        except LostSlot:
            pass  # perhaps our own entry, whose reply was lost: the log tells
        except Rejected as refusal:
            self.reason = refusal.message
        self.term = self._journal.state.term
        if not self._journal.leads(self.term, self.instance):
            self._keeper.abandon()
            return False
        return True

    async def renew(self, force: bool = False) -> None:
        """Write the lease again when it is time, or now. Losing it ends the lead; ``Retryable`` passes."""
        async with self._busy:
            due = self._clock.monotonic_s() - self._renewed_s >= LEASE_RENEW_S
            if not self.leading or not (due or force):
                return
            started_s = self._clock.monotonic_s()
            try:
                await in_thread(self._keeper.renew)
                self._renewed_s = started_s
                await self._journal.catch_up()  # the owner may have spoken
            except LeaseLost as lost:
                self._step_down(lost.message)

    def check(self) -> bool:
        """Whether the log still says that we lead, and may; if not, step down."""
        if self.leading and not self._journal.leads(self.term, self.instance):
            self._step_down("another term has begun")
        elif self.leading and not self._journal.may_lead():
            self._step_down("the run's owner no longer lets this hotkey lead")
        return self.leading

    async def leave(self, reason: str) -> None:
        """Lead no longer, for a reason of our own; the next try begins another term."""
        async with self._busy:
            if self.leading:
                self._step_down(reason)
            self._keeper.abandon()

    def resign(self, reason: str) -> None:
        """Lead no more; the lease expires by itself."""
        if self.leading:
            self._step_down(reason)

    def _step_down(self, reason: str) -> None:
        logger.warning("no longer leading: {}", reason)
        self.reason = reason
        self.leading = False
        self._keeper.abandon()
