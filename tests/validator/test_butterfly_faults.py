"""A chain that is away, owners of one provider: the leader fills in, commits the same bytes, and blames only liars."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from common.data.dataset import Dataset
from common.errors import Retryable
from common.merge.networks import parse_asn_table
from tests.validator.butterflies import (
    EVERYBODY,
    MINERS,
    UNDRAWN,
    Twist,
    bytes_of_a_leader_alone,
    check_round,
    lie,
    owners,
    play_round,
    reduce,
    reductions_told,
    stored,
    until_committed,
    until_dealt,
)
from tests.validator.world import World, play
from validator.round.deadlines import DEAL_SHARE, Deadlines


@pytest.fixture(scope="module")
def alone(dataset: Dataset) -> tuple[object, ...]:
    return bytes_of_a_leader_alone(dataset)


# The chain.


def stands_still(world: World) -> None:
    """No block after the plan's becomes final."""


def refuses_blocks(world: World) -> None:
    world.chain_world.fail_next["block"] = [Retryable("the chain is away") for _ in range(1000)]


def refuses_hashes(world: World) -> None:
    world.chain_world.fail_next["finalized_hash"] = [Retryable("the chain is away") for _ in range(1000)]


@pytest.mark.parametrize(
    ("away", "why"),
    [(stands_still, "is not final yet"), (refuses_blocks, "the chain is away"), (refuses_hashes, "the chain is away")],
)
def test_with_the_chain_away_through_the_deadline_the_leader_merges_alone_and_says_why(
    dataset: Dataset, alone: tuple[object, ...], away: Callable[[World], None], why: str
) -> None:
    world = World(dataset, reduce=UNDRAWN)

    async def go() -> None:
        await world.begin(MINERS)
        validator, waits = world.validator(until=1), []
        away(world)
        for _ in range(400):
            await validator.driver.step()
            current = validator.board.round
            if validator.board.journal.state.head == 1 and current is None:
                await validator.scorer.drain()
                break
            if current is not None and current.opened.plan is not None:
                if current.merged is None:
                    waits.append(validator.board.waiting_for)
                assert all(miner.beat(validator).reduce is None for miner in world.miners)
            else:
                await play(world, validator)
            world.clock.advance(0.25)
        half = round(DEAL_SHARE * Deadlines.of(world.spec).finish_s / 0.25)
        assert half - 4 <= len(waits) <= half + 4, "half of the time to finish, in steps of a quarter of a second"
        assert all("dealing its partitions" in told and why in told for told in waits[2:]), waits

    asyncio.run(go())
    check_round(world, alone, set())
    assert stored(world, "mean") == stored(world, "reduction") == []


def test_a_chain_that_comes_back_in_time_lets_the_miners_reduce(dataset: Dataset, alone: tuple[object, ...]) -> None:
    world = World(dataset, reduce=UNDRAWN)
    world.chain_world.fail_next["block"] = [Retryable("the chain is away") for _ in range(5)]
    world.chain_world.fail_next["finalized_hash"] = [Retryable("the chain is away") for _ in range(5)]
    with reductions_told() as told:
        asyncio.run(play_round(world, {}))
    assert told[0].startswith("round 0: 3 of 3 partitions reduced by miners; late: nobody")
    check_round(world, alone, set())


# One provider.

ONE_NETWORK = ("203.0.113.1", "203.0.113.2", "203.0.113.77", "::ffff:203.0.113.4")
ONE_ASN = ("192.0.2.1", "198.51.100.1", "203.0.113.1", "2001:db8::1")
TABLE = parse_asn_table("192.0.2.0/24 64500\n198.51.100.0/24 64500\n203.0.113.0/24 64500\n2001:db8::/32 64500", "table")
PLACES = {"one /24": ONE_NETWORK, "one ASN": ONE_ASN}


@pytest.mark.parametrize("twist", [None, lie], ids=["all honest", "all lie alike"])
@pytest.mark.parametrize("where", PLACES)
def test_owners_of_one_provider_are_checked_to_the_last_partition(
    dataset: Dataset, alone: tuple[object, ...], where: str, twist: Twist | None
) -> None:
    world = World(dataset, reduce=UNDRAWN)

    async def go() -> None:
        await begin_at(world, PLACES[where])
        validator = world.validator(until=1, asns=TABLE)
        await until_dealt(world, validator)
        await until_committed(world, validator, owners(world, dict.fromkeys(EVERYBODY, twist) if twist else {}))

    with reductions_told() as told:
        asyncio.run(go())
    assert told[0].startswith("round 0: 0 of 3 partitions reduced by miners, 3 here: 3 for related owners")
    check_round(world, alone, set() if twist is None else set(EVERYBODY))


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("handed_in", [frozenset(), frozenset({0, 1})], ids=["at once", "in the middle"])
def test_nothing_is_lost_when_the_only_provider_goes_down(
    dataset: Dataset, alone: tuple[object, ...], where: str, handed_in: frozenset[int]
) -> None:
    world = World(dataset, reduce=UNDRAWN)

    async def go() -> None:
        await begin_at(world, PLACES[where])
        validator = world.validator(until=1, asns=TABLE)
        asked = await until_dealt(world, validator)
        for number in asked.keys() & handed_in:
            await reduce(world, validator, world.miners[number], world.miners[number].beat(validator))
        before_s = world.clock.monotonic_s()
        await until_committed(world, validator, owners(world, gone=EVERYBODY))
        waited_s = world.clock.monotonic_s() - before_s
        assert waited_s <= world.spec.round.member_timeout_s + 1.0, "no longer than the silence of the dead tells"

    asyncio.run(go())
    check_round(world, alone, set())


async def begin_at(world: World, hosts: tuple[str, ...]) -> None:
    await world.begin(len(hosts))
    for miner, host in zip(world.miners, hosts, strict=True):
        miner.host = host
