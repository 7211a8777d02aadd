"""Where a validator without keys reads the run: it follows the owner when the run moves to another bucket.

The move stands in the log; where the old bucket has gone before the log was read that far, the owner's commitment on
chain says the same, and is asked now and then. Invariant: nothing behind the move is read in the bucket that was left.
"""

from __future__ import annotations

import asyncio

from loguru import logger

from common import timeouts
from common.chain.commitment import RunLocation
from common.chain.discovery import base_url, find_run
from common.chain.port import ChainPort
from common.clock import Clock
from common.errors import RemoteError
from common.runlog.owned import location_of_move
from common.store.place import BucketPlace
from common.store.reader import HttpReader
from common.store.readonly import ReadOnlyStore
from validator.journal import Journal


class PublicStore(ReadOnlyStore):
    """What everybody can read of the run's bucket, wherever that is now. Threads may share it."""

    def __init__(self, location: RunLocation, reader: HttpReader) -> None:
        super().__init__(reader)
        self._http = reader
        self.location = location

    @property
    def place(self) -> BucketPlace:
        """The bucket that is read now."""
        return BucketPlace(self.location.endpoint, self.location.bucket, self.location.prefix)

    def go(self, location: RunLocation) -> None:
        """Read there from now on. The address first: whoever asks for the place meanwhile reads nothing more here."""
        self._http.move(base_url(location))
        self.location = location


class PublicPlace:
    """Moves one validator's store after the run."""

    def __init__(self, store: PublicStore, journal: Journal, chain: ChainPort, clock: Clock) -> None:
        self._store = store
        self._journal = journal
        self._chain = chain
        self._clock = clock
        self._asked_s = clock.monotonic_s()
        self._told = ""

    async def run(self) -> None:
        """Look for ever."""
        while True:
            await asyncio.sleep(timeouts.KEYS_LOOK_S)
            await self.look()

    async def look(self) -> None:
        """Go where the log says that the run has moved, or now and then where the chain says so."""
        state, now_s = self._journal.state, self._clock.monotonic_s()
        if state.moved is not None and state.left(self._store.place):
            self._go(location_of_move(state.spec, state.moved), "its owner says so in the log")
        elif now_s - self._asked_s >= timeouts.METAGRAPH_STALE_S:
            self._asked_s = now_s
            await self._ask_chain()

    async def _ask_chain(self) -> None:
        known = self._store.location
        try:
            found = await find_run(self._chain, self._journal.state.spec.netuid)
        except RemoteError as fault:
            logger.debug("whether the run has moved is not known: {}", fault)
            return
        if (found.run, found.spec_sha256) == (known.run, known.spec_sha256) and found != known:
            self._go(found, "its owner has committed that on chain")

    def _go(self, location: RunLocation, why: str) -> None:
        if location.public_read:
            self._store.go(location)
            logger.bind(event="moved").info("the run has moved to {}: {}", base_url(location), why)
        elif location.endpoint + location.bucket != self._told:
            self._told = location.endpoint + location.bucket
            logger.error(
                "the run has moved to {}, which can't be read without keys: give --storage", base_url(location)
            )
