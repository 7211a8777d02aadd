"""The leader vanishes in the middle of a reduction: the next one finishes the same round, with the same bytes."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from common.data.dataset import Dataset
from common.errors import RemoteError
from common.units import Revision
from tests.support.specs import VALIDATOR
from tests.validator.butterflies import (
    EVERYBODY,
    MINERS,
    UNDRAWN,
    bytes_of_a_leader_alone,
    check_round,
    hand_in,
    lie,
    owners,
    reductions_told,
    until_committed,
    until_dealt,
    work,
)
from tests.validator.test_following import WATCHER, may_lead
from tests.validator.world import World
from validator.process import Validator, assemble


@pytest.fixture(scope="module")
def alone(dataset: Dataset) -> tuple[object, ...]:
    return bytes_of_a_leader_alone(dataset)


def shared_world(dataset: Dataset) -> World:
    return World(dataset, reduce=UNDRAWN, validators=(VALIDATOR.hotkey, WATCHER.hotkey))


async def begin(world: World, hosts: tuple[str, ...] = ()) -> tuple[Validator, Validator]:
    """Who leads, and who waits for the lease."""
    await world.begin(MINERS)
    await world._register(WATCHER)
    for miner, host in zip(world.miners, hosts, strict=False):
        miner.host = host
    standby = assemble(dataclasses.replace(may_lead(world), until_revision=Revision(1)))
    return world.validator(until=1), standby


async def until_it_leads(world: World, standby: Validator) -> None:
    """The first leader says nothing any more, and its lease expires."""
    for _ in range(100):
        await standby.driver.step()
        if standby.board.leadership.leading:
            return
        await world.chain_world.advance()
        world.clock.advance(0.5)
    raise AssertionError(standby.board.waiting_for)


async def code_of(validator: Validator, world: World, number: int, view_of: Validator) -> str:
    """What an owner is told that goes on handing in to ``validator``."""
    miner = world.miners[number]
    view = miner.beat(view_of).reduce
    assert view is not None
    try:
        await hand_in(validator, miner, work(world, miner, view))
    except RemoteError as refusal:
        return getattr(refusal, "code", type(refusal).__name__)
    return ""


@pytest.mark.parametrize(
    ("handed_in", "gone"),
    [
        pytest.param(frozenset(), frozenset(), id="before anybody handed in"),
        pytest.param(frozenset({0, 1}), frozenset(), id="after some had"),
        pytest.param(EVERYBODY, frozenset(), id="after all had"),
        pytest.param(frozenset({0, 1}), frozenset({0, 3}), id="and some owners vanish with it"),
        pytest.param(frozenset({0, 1}), EVERYBODY, id="and all owners vanish with it"),
    ],
)
def test_the_next_leader_finishes_the_same_round(
    dataset: Dataset, alone: tuple[object, ...], handed_in: frozenset[int], gone: frozenset[int]
) -> None:
    world = shared_world(dataset)

    async def go() -> None:
        first, second = await begin(world)
        asked = await until_dealt(world, first)
        for number in asked.keys() & handed_in:
            await hand_in(first, world.miners[number], work(world, world.miners[number], asked[number]))
        await until_it_leads(world, second)
        await until_committed(world, second, owners(world, gone=gone))

    asyncio.run(go())
    check_round(world, alone, set(), WATCHER.hotkey, terms=2)


def test_who_goes_on_handing_in_to_the_old_leader_is_told_that_it_leads_no_more(
    dataset: Dataset, alone: tuple[object, ...]
) -> None:
    """It was stopped, not killed: until it has looked at the log it knows only that its lease is too old."""
    world = shared_world(dataset)
    codes: list[str] = []

    async def go() -> None:
        first, second = await begin(world)
        asked = await until_dealt(world, first)
        number = min(asked)
        codes.append(await code_of(first, world, number, first))
        await until_it_leads(world, second)
        other = max(asked)
        codes.append(await code_of(first, world, other, first))
        for _ in range(2):  # its lease is gone, and then the log tells whose it is
            await first.driver.step()
        miner = world.miners[other]
        assert miner.beat(first).reduce is None
        with pytest.raises(RemoteError, match=f"not_leader: the leader is {WATCHER.hotkey}"):
            await hand_in(first, miner, work(world, miner, asked[other]))
        with reductions_told() as told:
            await until_committed(world, second, owners(world))
        assert told[0].startswith("round 0: 3 of 3 partitions reduced by miners; late: nobody")

    asyncio.run(go())
    assert codes == ["", "Retryable"]
    check_round(world, alone, set(), WATCHER.hotkey, terms=2)


@pytest.mark.parametrize("one_network", [False, True], ids=["strangers, honest", "of one /24, all lying alike"])
def test_a_new_leader_deals_by_the_networks_that_it_has_seen_itself(
    dataset: Dataset, alone: tuple[object, ...], one_network: bool
) -> None:
    """Right after a takeover it takes everybody as live and has heard nobody: who is of one network it can't know."""
    world = shared_world(dataset)

    async def go() -> None:
        first, second = await begin(world, tuple(f"203.0.113.{n}" for n in range(1, 5)) if one_network else ())
        await until_dealt(world, first)
        await until_it_leads(world, second)
        for _ in range(6):  # its looks, and blocks, come faster than heartbeats
            await second.driver.step()
            await world.chain_world.advance()
            world.clock.advance(world.spec.round.member_timeout_s / 8)
        await until_committed(world, second, owners(world, dict.fromkeys(EVERYBODY, lie) if one_network else {}))

    with reductions_told() as told:
        asyncio.run(go())
    by_miners = "0 of 3 partitions reduced by miners, 3 here: 3 for related owners" if one_network else "3 of 3 "
    assert told[0].startswith(f"round 0: {by_miners}")
    assert told[0].endswith("late: nobody")
    check_round(world, alone, EVERYBODY if one_network else set(), WATCHER.hotkey, terms=2)
