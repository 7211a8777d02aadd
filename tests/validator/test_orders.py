"""The owner's orders, obeyed by a leader, by the next one, and in the middle of a round."""

from __future__ import annotations

import asyncio

from common.data.dataset import Dataset
from common.runlog.commands import abort_command, pause_command, put_command, resume_command, rollback_command
from common.runlog.entries import Resumed, RolledBack, RoundAborted, decode_entry
from common.runlog.rules import ORDERED
from common.runlog.verify import verify_run
from common.units import Revision
from tests.support.specs import OWNER, tiny_spec
from tests.validator.world import World, drive, play, steps
from validator.orders import ROLLED_BACK
from validator.process import Validator


def entries(world: World) -> list[object]:
    return [decode_entry(slot, "demo").data for slot in world.slots()]


async def into_a_round(world: World, validator: Validator) -> None:
    """Until the open round holds something."""
    for _ in range(50):
        await validator.driver.step()
        await play(world, validator)
        current = validator.board.round
        if current is not None and list(current.submissions.everything()):
            return
        world.clock.advance(0.25)
    raise AssertionError("nobody hands in")


def test_a_rollback_ends_the_round_at_once_and_the_run_goes_on_from_there(dataset: Dataset) -> None:
    world = World(dataset)

    async def go() -> None:
        await world.begin()
        validator = world.validator()
        await drive(world, validator, 3)
        await into_a_round(world, validator)
        put_command(world.store, rollback_command(world.log(), OWNER, 1, Revision(1)))
        world.clock.advance(3.0)
        for _ in range(6):
            await validator.driver.step()
        assert world.log().head == 1
        assert validator.board.round is not None
        assert not list(validator.board.round.submissions.everything()), "nothing sent before it counts"
        assert validator.board.round.state.held_s == 0.0, "nor any time"
        again = world.validator()
        world.clock.advance(20.0)
        await again.driver.step()
        await again.driver.step()
        assert again.board.round is None or not list(again.board.round.submissions.everything())
        await drive(world, again, 5)
        await again.scorer.drain()

    asyncio.run(go())
    [end] = [entry for entry in entries(world) if isinstance(entry, RoundAborted)]
    assert (end.code, end.command_sha256) == (ROLLED_BACK, None)
    assert len([entry for entry in entries(world) if isinstance(entry, RolledBack)]) == 1
    state = world.log()
    assert [node.revision for node in state.lineage(Revision(5))] == [0, 1, 4, 5]
    assert verify_run(world.store, "demo").merges == 5


def test_a_pause_waits_for_the_round_and_a_long_one_ends_cold(dataset: Dataset) -> None:
    cold_s = tiny_spec().restart.cold_after_s
    world = World(dataset)

    async def go() -> None:
        await world.begin()
        validator = world.validator()
        await into_a_round(world, validator)
        put_command(world.store, pause_command(world.log(), OWNER, 1))
        world.clock.advance(3.0)
        await steps(world, validator, 1)
        assert world.log().open_round is not None
        await drive(world, validator, 1)
        await steps(world, validator, 3)
        assert world.log().paused is not None
        assert "the owner orders it" in validator.service.status().paused
        world.clock.advance(cold_s + 1)
        put_command(world.store, resume_command(world.log(), OWNER, 2))
        await steps(world, validator, 8, 3.0)
        await drive(world, validator, 2)

    asyncio.run(go())
    [resumed] = [entry for entry in entries(world) if isinstance(entry, Resumed)]
    assert resumed.cold
    assert verify_run(world.store, "demo").state.restarts[0].kind == "cold"


def test_an_aborted_rounds_work_counts_in_the_next_and_the_order_once(dataset: Dataset) -> None:
    world = World(dataset)

    async def go() -> None:
        await world.begin()
        validator = world.validator()
        await into_a_round(world, validator)
        put_command(world.store, abort_command(world.log(), OWNER, 1))
        world.clock.advance(3.0)
        await drive(world, validator, 1)

    asyncio.run(go())
    [end] = [entry for entry in entries(world) if isinstance(entry, RoundAborted)]
    assert (end.code, end.round) == (ORDERED, 0)
    assert (world.log().rounds_committed, world.log().rounds_aborted) == (1, 1)
    assert world.log().failures == ()
    assert verify_run(world.store, "demo").objects["command"] == 1


def test_a_rollback_to_what_is_not_there_any_more_is_passed_over_and_ends_no_round(dataset: Dataset) -> None:
    world = World(dataset)

    async def go() -> None:
        await world.begin()
        validator = world.validator()
        await drive(world, validator, 2)
        await into_a_round(world, validator)
        for info in list(world.store.list("runs/demo/revisions/0/")):
            world.store.delete(info.key)
        put_command(world.store, rollback_command(world.log(), OWNER, 1, Revision(1)))
        again = world.validator()
        world.clock.advance(20.0)
        for _ in range(5):
            await again.driver.step()
        assert world.log().open_round is not None

    asyncio.run(go())
    assert (world.log().rollback, world.log().rounds_aborted) == (None, 0)
