"""Heads of the log on chain: this validator's own, once an epoch, and those of the others, which bind whoever leads.

Invariants: what is committed was read from the bucket just before and follows from what this hotkey committed earlier;
an answer that was lost is settled by reading the chain; nobody leads on a log that ends before, or contradicts, a head
that a validator who may lead has committed. A read that was merely stale heals by itself, so that is waited for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from loguru import logger

from common import timeouts
from common.chain.headcommit import CommittedHead, encode, of_run
from common.chain.heads import read_heads
from common.chain.port import ChainPort
from common.errors import BrigadeError, RemoteError
from common.runlog.headproof import contradiction
from common.runlog.state import RunState
from common.timeouts import CHAIN_CALL_S
from common.units import Hotkey, Sha256
from validator.journal import Journal

LOOK_BLOCKS = 10
"""At most so many blocks between two looks at the chain."""
Head = tuple[int, Sha256]
"""A slot and its hash."""


class HeadGuard:
    """Whether the log as this process has read it holds what validators committed."""

    def __init__(self, chain: ChainPort, netuid: int, journal: Journal) -> None:
        self._chain = chain
        self._netuid = netuid
        self._journal = journal
        self._heads: dict[Hotkey, CommittedHead] | None = None
        self._proved: set[CommittedHead] = set()
        self._told = ""

    async def refresh(self) -> None:
        """Read the heads of all who may lead again. Raises as ``ChainPort``."""
        state = self._journal.state
        self._heads = await read_heads(self._chain, self._netuid, state.run, state.validators)

    async def refusal(self) -> str:
        """Why nobody may build on this log now, or nothing. ``Retryable`` when the storage stays away."""
        try:
            if self._heads is None:
                await self.refresh()
        except RemoteError as fault:
            return f"whether the log is whole is not known until the chain tells the heads committed there: {fault}"
        why = await self._compare(self._journal.state)
        if why:  # a head may be newer than what we had read of the log
            why = await self._compare(await self._journal.catch_up())
        if why:
            self._heads = None  # asked again, for the next look
        if why and why != self._told:
            logger.error("not leading: {}. If this does not heal by itself, the bucket was tampered with", why)
        self._told = why
        return why

    async def _compare(self, state: RunState) -> str:
        for hotkey, head in sorted((self._heads or {}).items()):
            if head in self._proved:
                continue
            why = contradiction(state.run, hotkey, head, await self._journal.slot_sha256(head.seq))
            if why:
                return why
            self._proved.add(head)
        return ""


class HeadsOnChain:
    """Commits the heads of one validator."""

    def __init__(
        self,
        chain: ChainPort,
        netuid: int,
        journal: Journal,
        guard: HeadGuard,
        hotkey: Hotkey,
        reports: str = "",
        head: Callable[[], Awaitable[Head | None]] | None = None,
    ) -> None:
        """``reports`` is where this validator's reports are; ``head`` what it has read and checked, None for nothing
        yet; by default all of the log as read now."""
        self._chain = chain
        self._netuid = netuid
        self._journal = journal
        self._guard = guard
        self._hotkey = hotkey
        self._reports = reports
        self._head = head or journal.read_head
        self._epoch_block = -1
        """First block of the epoch in which the head was committed."""

    async def run(self) -> None:
        """Look, commit when it is due, wait for a block, for ever; a chain or a storage that is away is waited for."""
        while True:
            try:
                if await self._is_owner():
                    logger.warning("this hotkey's commitment holds the run's location, so it can't commit heads too")
                    return
                await self._chain.wait_for_block(await self.look(), CHAIN_CALL_S)
            except BrigadeError as fault:
                logger.debug("heads wait for chain or storage: {}", fault)
                await asyncio.sleep(getattr(fault, "retry_after_s", None) or timeouts.CHAIN_AWAY_S)

    async def look(self) -> int:
        """One look, and the commitment if none was made in this epoch; the block to look again at."""
        block = await self._chain.block()
        epoch_block = block - await self._chain.blocks_since_epoch(self._netuid)
        again = min(block + LOOK_BLOCKS, max(block + 1, await self._chain.next_epoch_block(self._netuid)))
        await self._guard.refresh()
        if self._epoch_block != epoch_block and await self._commit():
            self._epoch_block = epoch_block
        return again

    async def _commit(self) -> bool:
        """Whether the chain holds our present head now."""
        head = await self._head()
        if head is None:
            return False
        run = self._journal.state.run
        fields = encode(CommittedHead(run, *head, self._reports))
        held = await self._chain.commitment(self._netuid, self._hotkey)
        if held == fields:
            return True
        earlier = of_run(held, run)
        if earlier is not None and (earlier.seq > head[0] or not await self._follows(earlier)):
            return False
        await self._chain.set_commitment(self._netuid, fields)
        logger.bind(event="head_committed", seq=head[0]).info("committed the head on chain: slot {}", head[0])
        return True

    async def _follows(self, earlier: CommittedHead) -> bool:
        run, found = self._journal.state.run, await self._journal.slot_sha256(earlier.seq)
        why = contradiction(run, self._hotkey, earlier, found)
        if why:
            logger.error("the head is not committed: {}", why)
        return not why

    async def _is_owner(self) -> bool:
        return self._hotkey in (self._journal.state.spec.owner, await self._chain.subnet_owner_hotkey(self._netuid))
