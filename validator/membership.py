"""Who has a seat: the metagraph, cached, and the seats pinned for the round.

Invariant: whoever had a seat when it first spoke in a round keeps it until the round is over, whatever the chain says
meanwhile. Without a chain the last metagraph holds; an unknown hotkey makes one refresh, at most every few seconds, so
that a stranger can't drive the chain. Each round opens with a fresh look, which no round waits long for.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from loguru import logger

from common import timeouts
from common.chain.port import ChainPort, Metagraph, Neuron
from common.clock import Clock
from common.errors import RemoteError, Retryable
from common.timeouts import CONNECT_S, METAGRAPH_REFRESH_S
from common.units import Coldkey, Hotkey, Uid
from validator.watchdog.facts import Fault

MOST_ASKING = 64
"""Requests of hotkeys without a known seat that wait for one look at the chain: nobody has proved whose they are."""


@dataclass(frozen=True)
class Seat:
    """One registration: the uid alone would be a stranger's tomorrow."""

    hotkey: Hotkey
    coldkey: Coldkey
    uid: Uid
    registered_block: int


def seat_of(neuron: Neuron) -> Seat:
    """A neuron's seat."""
    return Seat(neuron.hotkey, neuron.coldkey, neuron.uid, neuron.registered_block)


class Membership:
    """Seats of one subnet."""

    def __init__(self, chain: ChainPort, netuid: int, clock: Clock) -> None:
        self._chain = chain
        self._netuid = netuid
        self._clock = clock
        self._metagraph: Metagraph | None = None
        self._tried_s: float | None = None
        self._read_s = 0.0
        self._pins: dict[Hotkey, Seat] = {}
        self._refreshing = asyncio.Lock()
        self._asking = 0
        self._opening: asyncio.Task[None] | None = None
        self._failed: Fault | None = None
        self._failures = 0

    @property
    def metagraph(self) -> Metagraph | None:
        """As last read."""
        return self._metagraph

    def hotkeys(self) -> set[Hotkey]:
        """Every hotkey that the last metagraph has."""
        return {neuron.hotkey for neuron in self._metagraph.neurons} if self._metagraph else set()

    @property
    def trouble(self) -> Fault | None:
        """Why the chain can't be read, and since when; None unless it failed several times in a row."""
        return self._failed if self._failures > 1 else None

    def known(self, hotkey: Hotkey) -> Seat | None:
        """The seat by what is known already: pinned, or in the last metagraph."""
        if hotkey in self._pins:
            return self._pins[hotkey]
        neuron = self._metagraph.by_hotkey(hotkey) if self._metagraph else None
        return seat_of(neuron) if neuron else None

    async def seat(self, hotkey: Hotkey) -> Seat | None:
        """The seat, after one look at the chain when it is not known. ``Retryable`` if no metagraph was ever read, and
        when many others wait for that look."""
        seat = self.known(hotkey)
        if seat is None:
            if self._asking >= MOST_ASKING:
                raise Retryable("the chain is being asked for the seats of many; ask again", METAGRAPH_REFRESH_S)
            self._asking += 1
            try:
                await self.refresh()
            finally:
                self._asking -= 1
            seat = self.known(hotkey)
        if seat is None and self._metagraph is None:
            raise Retryable("the chain does not answer yet, so nobody's seat is known", METAGRAPH_REFRESH_S)
        return seat

    def pin(self, seat: Seat) -> None:
        """Keep this seat for the rest of the round."""
        self._pins.setdefault(seat.hotkey, seat)

    def new_round(self) -> None:
        """Seats count anew."""
        self._pins.clear()

    async def refresh_if_stale(self) -> None:
        """Read the metagraph again when it is old."""
        if self._metagraph is None or self._clock.monotonic_s() - self._read_s > timeouts.METAGRAPH_STALE_S:
            await self.refresh()

    async def refresh_for_round(self) -> None:
        """Read the metagraph again; if one is held, the rest of a slow call goes on beside the round."""
        if self._metagraph is None:
            return await self.refresh()
        if self._opening is None or self._opening.done():
            self._opening = asyncio.create_task(self.refresh(), name="seats")
        done, _ = await asyncio.wait({self._opening}, timeout=CONNECT_S)
        for refreshed in done:
            refreshed.result()

    async def refresh(self) -> None:
        """Read the metagraph, at most once every few seconds; trouble is logged and the old one stays."""
        async with self._refreshing:
            now_s = self._clock.monotonic_s()
            if self._tried_s is not None and now_s - self._tried_s < METAGRAPH_REFRESH_S:
                return
            self._tried_s = now_s
            try:
                # The port has its own timeout and drops the dead connection with it: none of ours may come first.
                self._metagraph = await self._chain.metagraph(self._netuid)
                self._read_s, self._failed, self._failures = now_s, None, 0
            except RemoteError as error:
                self._failed = Fault("chain", str(error), self._failed.since_s if self._failed else now_s)
                self._failures += 1
                logger.warning("the metagraph can't be read: {}", error)
