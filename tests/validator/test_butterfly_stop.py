"""A deal under way when its leader stops, or stops waiting for it: it ends, and no task of it is left."""

from __future__ import annotations

import asyncio

import pytest

from common import timeouts
from common.blocking import leave
from common.chain.port import ChainPort
from common.data.dataset import Dataset
from common.errors import Retryable
from common.units import Coldkey
from tests.support.memchain import MemoryChain, MemoryWallet
from tests.support.specs import VALIDATOR
from tests.validator.butterflies import EVERYBODY, UNDRAWN, owners, stored, until_committed
from tests.validator.world import World, play
from validator.process import Validator


class HangingChain:
    """A chain that does not answer which block is final, until it is told to."""

    def __init__(self, world: World) -> None:
        wallet = MemoryWallet(VALIDATOR.hotkey, Coldkey(f"cold-{VALIDATOR.hotkey[:10]}"))
        self.port: MemoryChain = world.chain_world.port(wallet)
        self.asked, self.answers, self.held = asyncio.Event(), asyncio.Event(), self.port.finalized_hash
        self.port.finalized_hash = self.hang  # type: ignore[method-assign]

    async def hang(self, number: int) -> str | None:
        self.asked.set()
        await self.answers.wait()
        return await self.held(number)

    def as_port(self) -> ChainPort:
        return self.port


def under_way() -> set[str]:
    """Names of all tasks but the one that asks."""
    return {task.get_name() for task in asyncio.all_tasks() - {asyncio.current_task()}}


async def until_dealing(world: World, validator: Validator, chain: HangingChain) -> None:
    while not chain.asked.is_set():
        await validator.driver.step()
        current = validator.board.round
        if current is None or current.opened.plan is None:
            await play(world, validator)
        world.clock.advance(0.25)


async def dealing(dataset: Dataset) -> tuple[World, HangingChain, Validator]:
    """A leader whose deal waits for a chain that does not answer."""
    world = World(dataset, reduce=UNDRAWN)
    await world.begin(4)
    chain = HangingChain(world)
    validator = world.validator(until=1, chain=chain.as_port())
    await until_dealing(world, validator, chain)
    return world, chain, validator


def test_a_driver_that_stops_in_the_middle_of_a_deal_leaves_no_task(dataset: Dataset) -> None:
    async def go() -> None:
        _, _, validator = await dealing(dataset)
        running = asyncio.create_task(validator.driver.run(), name="driver")
        while "lease" not in under_way():
            await asyncio.sleep(0)
        assert "deal" in under_way()
        running.cancel()
        await asyncio.wait({running})
        assert under_way() == set()

    asyncio.run(go())


def test_a_deal_that_comes_when_the_leader_has_merged_alone_gives_nobody_a_duty(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeouts, "LEADER_LOOK_S", 1e-3)  # each look waits so long, in real time, for a deal that hangs

    async def go() -> None:
        world, chain, validator = await dealing(dataset)
        await until_committed(world, validator, owners(world, late=EVERYBODY))
        assert "deal" in under_way(), "a chain call is not cut off"
        chain.answers.set()
        while "deal" in under_way():
            await asyncio.sleep(0)
        assert all(miner.beat(validator).reduce is None for miner in world.miners)
        assert stored(world, "mean") == stored(world, "reduction") == []

    asyncio.run(go())


def test_what_a_task_failed_of_before_it_was_left_is_not_raised() -> None:
    async def go() -> None:
        async def failing() -> None:
            raise Retryable("away")

        failed, hanging = asyncio.create_task(failing()), asyncio.create_task(asyncio.Event().wait())
        await asyncio.wait({failed})
        await leave(failed, None, hanging)
        assert failed.done()
        assert hanging.cancelled()

    asyncio.run(go())
