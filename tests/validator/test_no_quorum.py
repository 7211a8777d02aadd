"""Rounds whose merged tokens stay below the quorum: no step, the base stays, and what came whole counts later."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from common import keys
from common.data.dataset import Dataset
from common.runlog.verify import verify_run
from tests.support.specs import tiny_spec
from tests.validator.test_churn import aborts, of, plans
from tests.validator.world import STEPS, WORK, Miner, World, drive, play, steps
from validator.process import Validator


def a_world(dataset: Dataset, quorum_tokens: int) -> World:
    limits = dataclasses.replace(tiny_spec().round, target_tokens=3 * WORK, quorum_tokens=quorum_tokens)
    return World(dataset, round=limits)


def only(world: World, *speaking: Miner) -> None:
    """These are heard; the others are dead."""
    for miner in world.miners:
        miner.silent = miner not in speaking


async def until_aborted(world: World, validator: Validator, count: int) -> None:
    """Whoever speaks takes turns until so many rounds were aborted."""
    for _ in range(400):
        await validator.driver.step()
        if world.log().rounds_aborted == count:
            return
        await play(world, validator)
        world.clock.advance(0.5)
    raise AssertionError(f"not aborted: {validator.board.waiting_for}")


def updates(world: World) -> list[str]:
    found = (info.key for info in world.store.list(keys.run_prefix(world.spec.run)))
    return [key for key in found if key.endswith(".update")]


@pytest.mark.parametrize("restarted", [False, True])
def test_what_the_gates_leave_below_the_quorum_makes_no_step(dataset: Dataset, restarted: bool) -> None:
    """Two thirds of the quorum were sent, and a copy makes it no more. The honest one need not send again."""
    world = a_world(dataset, quorum_tokens=WORK + WORK // 2)

    async def go() -> None:
        await world.begin()
        validator = world.validator(until=1)
        honest, copying, _ = world.miners
        await steps(world, validator, 3)  # until the round's clock runs
        copying.twist = lambda delta: honest._trained(world.log(), STEPS)
        only(world, honest, copying)
        await until_aborted(world, validator, 1)
        state = world.log()
        assert (state.head, state.rounds_committed, state.next_revision) == (0, 0, 1)
        assert updates(world) == []
        only(world, *world.miners[1:])
        if restarted:
            validator = world.validator(until=1)
            world.clock.advance(20.0)
        copying.twist = lambda delta: delta
        await drive(world, validator, 1)

    asyncio.run(go())
    [abort] = aborts(world)
    assert (abort.code, abort.base_revision) == ("no_quorum", 0)
    assert f"{WORK} validated tokens, the quorum is {WORK + WORK // 2}" in abort.evidence[0]
    [plan] = plans(world)
    [kept] = of(plan, world.miners[0])
    assert (kept.round, kept.decision, kept.tokens) == (0, "accepted", WORK)
    [better] = [member for member in of(plan, world.miners[1]) if member.decision == "accepted"]
    assert better.round == 1
    state = world.log()
    assert (state.head, state.head_node.parent, state.tokens_merged) == (1, 0, 3 * WORK)
    assert verify_run(world.store, "demo").merges == 1


def test_what_came_whole_in_several_rounds_makes_the_quorum_together(dataset: Dataset) -> None:
    world = a_world(dataset, quorum_tokens=3 * WORK)

    async def go() -> None:
        await world.begin()
        validator = world.validator(until=1)
        await steps(world, validator, 3)
        for number, miner in enumerate(world.miners[:-1]):
            only(world, miner)
            await until_aborted(world, validator, number + 1)
        only(world, world.miners[-1])
        await drive(world, validator, 1)

    asyncio.run(go())
    assert [abort.code for abort in aborts(world)] == ["no_quorum", "no_quorum"]
    [plan] = plans(world)
    named = [of(plan, miner) for miner in world.miners]
    assert [[(m.round, m.base_revision, m.tokens) for m in members] for members in named] == [
        [(0, 0, WORK)],
        [(1, 0, WORK)],
        [(2, 0, WORK)],
    ]
    assert world.log().tokens_merged == 3 * WORK
    assert verify_run(world.store, "demo").merges == 1
