"""From a subnet's number to a run: chain → owner's commitment → bucket → spec; and to the leader's address.

The chain is asked for the run once and for endpoints only when they are needed: the leader changed, or does not answer.
While the chain is away, the last address known goes on being used.
"""

from __future__ import annotations

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

    async def client(self, leader: Hotkey) -> ValidatorClient:
        """A client of ``leader``. Raises ``Retryable`` or ``Rejected('bad_endpoint')`` if it has no usable address."""
        known = self._client
        if known is not None and known.server == leader and not (self._doubtful and self._may_ask()):
            return known
        try:
            url = await self._resolve(leader)
        except RemoteError as error:
            if known is not None and known.server == leader:
                logger.debug("keeping the address {} of the leader: {}", known.base_url, error)
                return known
            raise
        return await self._use(leader, url)

    def doubt(self) -> None:
        """The leader did not answer: look its address up again before the next request."""
        self._doubtful = True

    async def close(self) -> None:
        if self._client is not None:
            await self._client.retire()

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
