"""Owners that live and never hand in: one round waits for them, the next ones do not, and they lose no pay."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import pytest
from loguru import logger

from common.data.dataset import Dataset
from common.errors import Retryable
from common.timeouts import LEASE_S
from common.units import Hotkey
from tests.support.specs import VALIDATOR
from tests.validator.butterflies import EVERYBODY, MINERS, UNDRAWN, Turn, owners, until_committed, until_dealt
from tests.validator.test_following import WATCHER, caught_up, may_lead
from tests.validator.world import World, play
from validator.process import Validator, assemble
from validator.scoring.reports import read_reports

LAZY = 3
BARRED = "no reduce duties until round 3: it let a round wait for its means"


def acting(world: World, late: Collection[int], gone: Collection[int] = ()) -> Turn:
    """Trains, delivers and reduces; ``late`` never hand in, ``gone`` are silent once there is a plan."""
    reducing = owners(world, late=late, gone=gone)

    async def turn(validator: Validator) -> None:
        frozen = validator.board.round is not None and validator.board.round.opened.plan is not None
        await (reducing(validator) if frozen else play(world, validator))

    return turn


async def seconds_of(world: World, validator: Validator, head: int, late: Collection[int] = ()) -> float:
    """A round, and how long it took on the leader's clock."""
    since_s = world.clock.monotonic_s()
    await until_committed(world, validator, acting(world, late), head)
    return world.clock.monotonic_s() - since_s


def hotkey(world: World) -> Hotkey:
    return world.miners[LAZY].signer.hotkey


def duties_told(validator: Validator, world: World) -> str:
    """What ``brigade status`` says of the lazy one."""
    return next(row.duties for row in validator.service.status().miners if row.hotkey == hotkey(world))


def test_an_owner_that_never_hands_in_costs_one_round_its_wait_and_itself_no_pay(dataset: Dataset) -> None:
    world = World(dataset, reduce=UNDRAWN)
    lines: list[str] = []

    async def go() -> None:
        await world.begin(MINERS)
        validator = world.validator()
        took_s = [await seconds_of(world, validator, head, {LAZY}) for head in (1, 2, 3)]
        assert took_s[0] > 25.0
        assert max(took_s[1:]) < took_s[0] / 3
        assert duties_told(validator, world) == ""  # the next round is dealt to it again
        assert (await until_dealt(world, validator)).keys() == EVERYBODY
        assert await seconds_of(world, validator, 4, {LAZY}) > 25.0
        for report in read_reports(world.store, world.spec, VALIDATOR.hotkey):
            [of_lazy] = [member for member in report.members if member.hotkey == hotkey(world)]
            assert of_lazy.round_score > 0
            assert (of_lazy.lie, of_lazy.barred_for) == ("", "late")
        assert [report.round for report in read_reports(world.store, world.spec, VALIDATOR.hotkey)] == [0, 1, 2, 3]
        assert of_lazy.barred_until == 8, "longer the second time"

    sink = logger.add(lambda message: lines.append(message.record["message"]), level="INFO")
    try:
        asyncio.run(go())
    finally:
        logger.remove(sink)
    assert f"round 0: {hotkey(world)} has {BARRED}" in lines
    assert any(line.startswith("round 1: 3 partitions go to 3 miners") and line.endswith(BARRED) for line in lines)


def test_an_owner_that_leaves_in_mid_reduction_is_dealt_again_when_it_is_back(dataset: Dataset) -> None:
    world = World(dataset, reduce=UNDRAWN)

    async def go() -> None:
        await world.begin(MINERS)
        validator = world.validator()
        await until_dealt(world, validator)
        await until_committed(world, validator, acting(world, (), gone={LAZY}))
        assert duties_told(validator, world) == ""
        assert LAZY in await until_dealt(world, validator)

    asyncio.run(go())


@pytest.mark.parametrize("trouble", ["storage away", "process stopped"])
def test_nobody_is_judged_when_the_storage_was_away_or_the_leader_slept_meanwhile(
    dataset: Dataset, trouble: str
) -> None:
    """The others were done before it; who was not can have been kept from it by just that."""
    world = World(dataset, reduce=UNDRAWN)

    def away(operation: str, key: str) -> None:
        raise Retryable("no connection to the storage")

    async def go() -> None:
        await world.begin(MINERS)
        validator = world.validator()
        await until_dealt(world, validator)
        reducing = owners(world, late={LAZY})
        await reducing(validator)
        world.store.before = away if trouble == "storage away" else None
        for _ in range(8):
            world.clock.advance(4.0 if trouble == "storage away" else 0.25)
            await validator.driver.step()
            for miner in world.miners:
                miner.beat(validator)
        world.store.before = None
        if trouble == "process stopped":
            world.clock.advance(40.0)
        await until_committed(world, validator, acting(world, {LAZY}))
        assert duties_told(validator, world) == ""
        assert LAZY in await until_dealt(world, validator)

    asyncio.run(go())


def test_when_everybody_is_barred_the_leader_merges_alone_and_waits_for_no_block(dataset: Dataset) -> None:
    """All let all rounds wait: nobody is blamed, but after a few times nobody is waited for either."""
    world = World(dataset, reduce=UNDRAWN)

    async def go() -> None:
        await world.begin(MINERS)
        validator = world.validator()
        took_s = [await seconds_of(world, validator, head, EVERYBODY) for head in range(1, 5)]
        assert min(took_s[:3]) > 25.0
        assert took_s[3] < 10.0

    asyncio.run(go())
    (*_, last) = read_reports(world.store, world.spec, VALIDATOR.hotkey)
    assert {member.barred_for for member in last.members} == {"excused"}
    assert all(member.round_score > 0 for member in last.members)


def test_a_restarted_leader_still_gives_it_no_duties(dataset: Dataset) -> None:
    world = World(dataset, reduce=UNDRAWN)

    async def go() -> None:
        await world.begin(MINERS)
        await seconds_of(world, world.validator(), 1, {LAZY})
        again = world.validator()
        assert again.board.members.bars.of(hotkey(world)).told(1) == BARRED
        world.clock.advance(2 * LEASE_S)
        await until_leading(world, again)
        asked = await until_dealt(world, again)
        assert asked.keys() == EVERYBODY - {LAZY}
        assert duties_told(again, world) == BARRED

    asyncio.run(go())


def test_the_next_leader_gives_it_no_duties_either(dataset: Dataset) -> None:
    world = World(dataset, reduce=UNDRAWN, validators=(VALIDATOR.hotkey, WATCHER.hotkey))

    async def go() -> None:
        await world.begin(MINERS)
        await world._register(WATCHER)
        await seconds_of(world, world.validator(), 1, {LAZY})
        heir = assemble(may_lead(world))
        await caught_up(heir, 1)
        assert heir.board.members.bars.of(hotkey(world)).until == 0
        world.clock.advance(2 * LEASE_S)
        await until_leading(world, heir)
        asked = await until_dealt(world, heir)
        assert asked.keys() == EVERYBODY - {LAZY}
        assert duties_told(heir, world) == BARRED

    asyncio.run(go())


async def until_leading(world: World, validator: Validator) -> None:
    for _ in range(60):
        await validator.driver.step()
        if validator.board.leadership.leading and validator.board.round is not None:
            return
        world.clock.advance(1.0)
    raise AssertionError(validator.board.waiting_for)
