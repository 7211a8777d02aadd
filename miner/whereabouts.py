"""Where the run's objects are now, for one miner: it follows the owner when the run moves to another bucket.

The move stands in the log that the miner reads; where the old bucket has gone before the miner saw it, the owner's
commitment on chain says the same. Either way the same policy holds as at the start: plain reads, and unless private
addresses are allowed only public ones. Deltas go to the present place and nowhere else.
"""

from __future__ import annotations

from loguru import logger

from common import timeouts
from common.blocking import in_thread
from common.chain.commitment import RunLocation
from common.chain.discovery import base_url, find_run
from common.chain.port import ChainPort
from common.clock import Clock
from common.errors import Rejected, RemoteError
from common.runlog.owned import location_of_move
from common.runlog.state import RunState
from common.store.http import HttpClient
from common.store.place import BucketPlace
from common.store.reader import HttpReader
from miner.means import READS_AT_A_TIME
from miner.places import StoragePlace


class Whereabouts:
    """The event loop owns it; threads may read ``reader`` and call ``check_upload``."""

    def __init__(self, location: RunLocation, chain: ChainPort, netuid: int, clock: Clock, allow_private: bool) -> None:
        self._location = location
        self._chain = chain
        self._netuid = netuid
        self._clock = clock
        self._allow_private = allow_private
        self._storage = StoragePlace.of(location)
        self._asked_s: float | None = None
        self._told = ""
        self.reader = HttpReader(base_url(location), http=HttpClient(connections=READS_AT_A_TIME))

    def place(self) -> BucketPlace:
        """The bucket that is read and written now."""
        return BucketPlace(self._location.endpoint, self._location.bucket, self._location.prefix)

    def check_upload(self, url: str) -> None:
        """See ``StoragePlace.check_upload``."""
        self._storage.check_upload(url)

    async def follow(self, state: RunState) -> None:
        """Go where the log says, if it goes on elsewhere."""
        if state.left(self.place()) and state.moved is not None:
            await self._go(location_of_move(state.spec, state.moved), "its owner says so in the log")

    async def ask_chain(self) -> None:
        """The bucket does not answer: go where the owner has committed the run, now and then."""
        now_s = self._clock.monotonic_s()
        if self._asked_s is not None and now_s - self._asked_s < timeouts.METAGRAPH_STALE_S:
            return
        self._asked_s = now_s
        try:
            found = await find_run(self._chain, self._netuid)
        except RemoteError as fault:
            logger.debug("whether the run has moved is not known: {}", fault)
            return
        same = (found.run, found.spec_sha256) == (self._location.run, self._location.spec_sha256)
        if same and found != self._location:
            await self._go(found, "its owner has committed that on chain, and the old storage does not answer")

    async def _go(self, location: RunLocation, why: str) -> None:
        try:
            storage = StoragePlace.of(location)
            if not location.public_read:
                raise Rejected("bad_endpoint", "it can't be read by plain GET, which this version needs")
            if not self._allow_private:
                await in_thread(storage.check_public)
        except RemoteError as fault:
            self._say(f"the run has moved to {base_url(location)}, where this miner does not go: {fault}")
            return
        self._location, self._storage = location, storage
        self.reader.move(base_url(location))
        logger.bind(event="moved").info("the run has moved to {}: {}", base_url(location), why)

    def _say(self, text: str) -> None:
        """Once, until it changes."""
        if text != self._told:
            logger.error("{}", text)
        self._told = text
