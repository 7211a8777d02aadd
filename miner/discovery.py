"""From a subnet's number to a run: chain → owner's commitment → bucket → spec; and to the leader's address.

The chain is asked for the run once and for endpoints only when they are needed: the leader changed, or does not answer.
Only a new leader's address is waited for. A doubted one is looked up beside the requests, which go on to the address
last known: a chain that hangs must not hold up heartbeats.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from loguru import logger

from common import timeouts
from common.chain.commitment import RunLocation
from common.chain.discovery import find_run
from common.chain.port import ChainPort, Neuron
from common.clock import Clock
from common.errors import Fatal, Rejected, RemoteError, Retryable
from common.identity import KeypairSigner
from common.units import Hotkey
from miner.client import ValidatorClient
from miner.places import endpoint_url


@dataclass(frozen=True)
class Found:
    """Where the run is, and this miner's seat on the subnet."""

    location: RunLocation
    seat: Neuron


async def find_seat(chain: ChainPort, netuid: int, hotkey: Hotkey) -> Found:
    """The subnet's run and our seat in it.

    Raises as ``find_run``, and ``Rejected('not_registered')``, and ``Fatal`` for a bucket that this version can't read.
    """
    location = await find_run(chain, netuid)
    if not location.public_read:
        raise Fatal(f"the bucket of run {location.run} can't be read by plain GET, which this version needs")
    seat = (await chain.metagraph(netuid)).by_hotkey(hotkey)
    if seat is None:
        raise Rejected("not_registered", f"hotkey {hotkey} has no seat on subnet {netuid}: register it first")
    return Found(location, seat)


class LeaderLink:
    """The connection to whoever leads, one long-lived client at a time. The event loop owns it."""

    def __init__(self, chain: ChainPort, netuid: int, signer: KeypairSigner, clock: Clock, allow_private: bool) -> None:
        self._chain = chain
        self._netuid = netuid
        self._signer = signer
        self._clock = clock
        self._allow_private = allow_private
        self._client: ValidatorClient | None = None
        self._doubtful = False
        self._asked_s: float | None = None
        self._looking: asyncio.Task[None] | None = None

    async def client(self, leader: Hotkey) -> ValidatorClient:
        """A client of ``leader``. Raises ``Retryable`` or ``Rejected('bad_endpoint')`` if it has no usable address."""
        known = self._client
        if known is None or known.server != leader:
            return await self._use(leader, await self._resolve(leader))
        self._look_beside(known)
        return known

    def doubt(self) -> None:
        """The leader did not answer: have its address looked up again."""
        self._doubtful = True

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait({self._looking})
        if self._client is not None:
            await self._client.retire()

    def _look_beside(self, known: ValidatorClient) -> None:
        """Start a look-up if one is due, and none is under way. Raises what nobody foresaw in the last one."""
        if self._looking is not None and self._looking.done():
            self._looking.result()
            self._looking = None
        if self._looking is None and self._doubtful and self._may_ask():
            self._looking = asyncio.create_task(self._look_again(known))

    async def _look_again(self, known: ValidatorClient) -> None:
        try:
            url = await self._resolve(known.server)
        except RemoteError as error:
            logger.debug("keeping the address {} of the leader: {}", known.base_url, error)
            return
        if self._client is known:  # else another leads by now
            await self._use(known.server, url)

    def _may_ask(self) -> bool:
        """The chain is not asked for the same thing all the time."""
        return self._asked_s is None or self._clock.monotonic_s() - self._asked_s >= timeouts.METAGRAPH_REFRESH_S

    async def _resolve(self, leader: Hotkey) -> str:
        self._asked_s = self._clock.monotonic_s()
        neuron = (await self._chain.metagraph(self._netuid)).by_hotkey(leader)
        if neuron is None or neuron.endpoint is None:
            raise Retryable(f"the leader {leader} has published no address on the chain")
        return endpoint_url(neuron.endpoint, self._allow_private)

    async def _use(self, leader: Hotkey, url: str) -> ValidatorClient:
        self._doubtful = False
        known = self._client
        if known is not None and (known.server, known.base_url) == (leader, url):
            return known
        self._client = ValidatorClient(url, leader, self._signer, self._clock)
        logger.bind(event="leader", hotkey=leader).info("the leader is {} at {}", leader, url)
        if known is not None:
            await known.retire()  # the uplink may have a request under way
        return self._client
