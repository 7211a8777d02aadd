"""A validator stopped while it writes to the chain, for longer than an epoch: woken, it pays no epoch twice."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from common.data.dataset import Dataset
from common.units import Coldkey, Uid
from tests.support.memchain import MemoryWallet
from tests.support.specs import VALIDATOR
from tests.validator.world import World, drive
from validator.payments import Payments


class StoppingChain:
    """A chain whose caller is stopped right before it sets weights, once."""

    def __init__(self, port: Any, meanwhile: Callable[[], Awaitable[None]]) -> None:
        self._port = port
        self._meanwhile: Callable[[], Awaitable[None]] | None = meanwhile
        self.epochs: list[int] = []
        """First block of each epoch in which weights were set."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._port, name)

    async def set_weights(self, netuid: int, weights: Mapping[Uid, int], version_key: int) -> None:
        if self._meanwhile is not None:
            meanwhile, self._meanwhile = self._meanwhile, None
            await meanwhile()
        await self._port.set_weights(netuid, weights, version_key)
        self.epochs.append(await self._port.block() - await self._port.blocks_since_epoch(netuid))


def test_weights_are_set_once_an_epoch_also_by_who_slept_through_one(dataset: Dataset) -> None:
    world = World(dataset)

    async def go() -> None:
        await world.begin()
        wallet = MemoryWallet(VALIDATOR.hotkey, Coldkey(f"cold-{VALIDATOR.hotkey[:10]}"))
        port = world.chain_world.port(wallet)
        await port.add_stake(world.spec.netuid, VALIDATOR.hotkey, 100.0)
        await world.chain_world.advance(45)  # an epoch gives the permit
        validator = world.validator()
        await drive(world, validator, 1)
        await validator.scorer.drain()
        chain = StoppingChain(port, lambda: world.chain_world.advance(45))
        payments = Payments(validator.board, chain)  # type: ignore[arg-type]  # a port with a stop in it
        for round_id in range(6):
            await payments.look()
            for seat in validator.board.standing.averages:
                validator.board.standing.averages[seat] += 1.0 + round_id  # new scores are due at once
            await world.chain_world.advance(3)
        assert chain.epochs
        assert len(chain.epochs) == len(set(chain.epochs))

    asyncio.run(go())
