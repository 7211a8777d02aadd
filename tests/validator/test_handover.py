"""What a new leader knows of the miners: what was proven to the one before it."""

from __future__ import annotations

import asyncio
import dataclasses

from common.data.dataset import Dataset
from common.timeouts import LEASE_S
from common.units import RoundId
from tests.support.specs import VALIDATOR
from tests.validator.test_following import WATCHER, caught_up, may_lead
from tests.validator.world import World, drive
from validator.handover import known_before
from validator.process import assemble
from validator.scoring.reports import find_reports, write_report


def test_a_new_leader_takes_over_the_rates_that_were_proven_to_the_one_before(dataset: Dataset) -> None:
    world = World(dataset, validators=(VALIDATOR.hotkey, WATCHER.hotkey))

    async def go() -> None:
        await world.begin()
        await world._register(WATCHER)
        leader = world.validator()
        await drive(world, leader, 2)
        await leader.scorer.drain()
        known = leader.board.members.proven()
        assert len(known) == len(world.miners)

        heir = assemble(may_lead(world))
        await caught_up(heir, 2)
        assert heir.board.members.proven() == {}
        world.clock.advance(2 * LEASE_S)
        for _ in range(50):
            await heir.driver.step()
            if heir.board.leadership.check() and heir.board.round is not None:
                break
            world.clock.advance(1.0)
        assert heir.board.members.proven() == known

        state = world.log()
        assert state.leader == WATCHER.hotkey
        assert known_before(world.store, state, WATCHER.hotkey, {VALIDATOR.hotkey}).rates == {}, "convicted: not asked"
        assert known_before(world.store, state, VALIDATOR.hotkey, ()).rates == {}, "not what it has said itself"
        assert [report.signer for report in known_before(world.store, state, WATCHER.hotkey, ()).reports] == [
            VALIDATOR.hotkey
        ]
        assert known_before(world.store, state, WATCHER.hotkey, {VALIDATOR.hotkey}).reports == (), "nor of health"

    asyncio.run(go())


def test_a_report_of_a_round_that_is_to_come_bars_nobody(dataset: Dataset) -> None:
    """Else one word of a leader would keep all others' miners from the reduction for as long as it likes."""
    world = World(dataset, validators=(VALIDATOR.hotkey, WATCHER.hotkey))

    async def go() -> None:
        await world.begin()
        leader = world.validator()
        await drive(world, leader, 1)
        await leader.scorer.drain()
        state = world.log()
        honest = find_reports(world.store, state.run, VALIDATOR.hotkey).newest
        assert honest is not None
        barred = tuple(dataclasses.replace(member, barred_until=1_000_000) for member in honest.members)
        write_report(world.store, dataclasses.replace(honest, round=RoundId(999_990), members=barred), VALIDATOR)
        assert known_before(world.store, state, WATCHER.hotkey, ()).bars == {}

    asyncio.run(go())
