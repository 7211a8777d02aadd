"""The running node: makes a block at every tick of the block clock and tells those who wait for it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

from common.chain.local.chain import Chain
from common.chain.local.clock import BlockClock
from common.chain.local.extrinsic import BadExtrinsic, decode_signed
from common.chain.local.genesis import genesis_record, open_identity
from common.chain.local.journal import Journal
from common.chain.local.metadata import RuntimeMetadata
from common.chain.local.pool import Pool, Waiting, Watcher, invalid
from common.chain.local.runtime import ChainRuntime
from common.clock import Clock
from common.errors import SetupError
from common.files import lock_file

HeadListener = Callable[[int], None]


class Node:
    """One chain in one folder. Nothing else may use the folder while the node lives."""

    def __init__(
        self, folder: Path, metadata: RuntimeMetadata, clock: Clock, seed: bytes, block_time_s: float | None = None
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.runtime = ChainRuntime(metadata)
        self.pool = Pool()
        self._listeners: set[HeadListener] = set()
        with contextlib.ExitStack() as opening:
            taken = SetupError(f"another chain runs in {folder}: stop it, or use another folder")
            opening.enter_context(lock_file(folder / "lock", taken))
            now_ms = clock.wall_ns() // 1_000_000
            self.identity = open_identity(folder, block_time_s, metadata.spec_version, now_ms, seed)
            self._journal = opening.enter_context(contextlib.closing(Journal(folder)))
            self._load(metadata, clock)
            self._open_files = opening.pop_all()

    def _load(self, metadata: RuntimeMetadata, clock: Clock) -> None:
        """Rebuild the chain from the journal; a new one gets its genesis."""
        records = list(self._journal.records) or [genesis_record(self.runtime)]
        if not self._journal.records:
            self._journal.append(records[0])
        self._journal.records.clear()  # the chain keeps what can still be read
        floor = records[-1].number
        self.clock = BlockClock(self.identity.genesis_ms, self.identity.block_time_s, clock, floor)
        genesis_hash = self.identity.genesis_hash(metadata)
        self.chain = Chain(self.runtime, genesis_hash, records, self.clock.timestamp_ms)
        self.chain.advance(self.clock.number())

    async def run(self) -> None:
        """Make blocks until cancelled. ``SetupError`` when the disk fails: what isn't durable isn't told."""
        while True:
            await asyncio.sleep(self.clock.wait_s(self.chain.head + 1))
            if self.clock.number() > self.chain.head:
                await self.make_block(self.clock.number())

    async def make_block(self, number: int) -> None:
        """Make block ``number`` of what the pool has; it is durable before anybody hears of it."""
        taken = list(self.pool.take(self.chain.state(number)))
        record = self.chain.build(number, [waiting.extrinsic for waiting in taken])
        if record is None:
            self.chain.advance(number)
        else:
            # On a thread, so that reads are served while the disk works; the head moves only afterwards.
            try:
                await asyncio.to_thread(self._journal.append, record)
            except OSError as error:
                raise SetupError(f"cannot write the chain's state ({error}): free some space and restart") from None
            self.chain.adopt(record)
        self.pool.settle()
        self._tell(taken)
        for listener in list(self._listeners):
            listener(number)

    def _tell(self, included: list[Waiting]) -> None:
        block_hash = "0x" + (self.chain.block_hash(self.chain.head) or b"").hex()
        for waiting in included:
            waiting.watch({"inBlock": block_hash})
            waiting.watch({"finalized": block_hash})

    def submit(self, data: bytes, watch: Watcher) -> bytes:
        """Verify an extrinsic and put it into the pool; returns its hash. Raises ``PoolRefused``."""
        try:
            extrinsic = decode_signed(self.runtime, data, self.chain.head, self.chain.block_hash)
        except BadExtrinsic as error:
            raise invalid(str(error)) from None
        self.pool.submit(extrinsic, self.chain.state(self.chain.head + 1), watch)
        return extrinsic.hash

    def listen(self, listener: HeadListener) -> Callable[[], None]:
        """Call ``listener`` with every new head's number; returns what ends it."""
        self._listeners.add(listener)
        return lambda: self._listeners.discard(listener)

    def close(self) -> None:
        """Let go of the folder."""
        self._open_files.close()
