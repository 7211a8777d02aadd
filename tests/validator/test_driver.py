"""The driver over memory store, memory chain and a clock that stands still: rounds commit, abort, and survive."""

from __future__ import annotations

import asyncio

from tests.validator.world import World, drive


def test_three_miners_make_two_revisions(world: World) -> None:
    async def go() -> None:
        await world.begin()
        validator = world.validator(until=2)
        await drive(world, validator, 2)
        await validator.scorer.drain()
        state = world.log()
        assert (state.head, state.rounds_committed, state.rounds_aborted, state.voids) == (2, 2, 0, ())
        report = validator.board.standing.report
        assert report is not None
        print([(m.why, m.score) for m in report.members], report.heldout_loss_base, report.heldout_loss)
        assert report.round == 1

    asyncio.run(go())
