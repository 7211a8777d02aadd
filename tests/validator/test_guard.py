"""Merges that would do harm: redone without whoever does it, given up with evidence, and at last a person's matter."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Callable

import numpy as np

from common.codec.params import F32
from common.data.dataset import Dataset
from common.errors import Retryable
from common.runlog.commands import put_command, resume_command
from common.runlog.entries import Paused, Resumed, RoundAborted, RoundFrozen, decode_entry
from common.runlog.rules import MAX_FAILURES
from common.runlog.verify import verify_run
from tests.support.specs import OWNER, VALIDATOR, tiny_spec
from tests.validator.world import WORK, Miner, World, drive, honest, play, steps
from validator.process import Validator
from validator.scoring.reports import read_reports


def noise(delta: F32) -> F32:
    """Garbage that no gate of the world below can tell from work."""
    rng = np.random.default_rng(int(abs(delta).sum() * 1e6) % 1000)
    return (4.0 * rng.standard_normal(len(delta))).astype(np.float32)


def lenient(dataset: Dataset) -> World:
    """A run whose gates let large deltas in, so that only the guard stands."""
    gates = dataclasses.replace(tiny_spec().gates, norm_factor=1e6, clip_factor=1e6, cosine_floor=-0.99)
    return World(dataset, gates=gates)


def entries(world: World) -> list[object]:
    return [decode_entry(slot, "demo").data for slot in world.slots()]


async def until_paused(world: World, validator: Validator) -> None:
    for _ in range(600):
        await validator.driver.step()
        if validator.board.journal.state.paused is not None and validator.board.round is None:
            return
        await play(world, validator)
        world.clock.advance(0.25)
    raise AssertionError("the run does not pause")


def poison(miners: list[Miner]) -> None:
    for miner in miners:
        miner.twist = noise


def test_a_merge_that_does_harm_is_done_again_without_the_one_who_did_it(dataset: Dataset) -> None:
    world = lenient(dataset)

    async def go() -> Validator:
        await world.begin()
        poison(world.miners[:1])
        validator = world.validator(until=1)
        await drive(world, validator, 1)
        await validator.scorer.drain()
        return validator

    asyncio.run(go())
    first, second = (data for data in entries(world) if isinstance(data, RoundFrozen))
    assert [(plan.attempt, [m.decision for m in plan.members].count("accepted")) for plan in (first, second)] == [
        (0, 3),
        (1, 2),
    ]
    [named] = [member for member in second.members if member.decision == "rejected"]
    assert (named.hotkey, named.code) == (world.miners[0].signer.hotkey, "guard_suspect")
    assert "held-out loss" in named.reason
    state = world.log()
    assert (state.rounds_committed, state.rounds_aborted, state.tokens_merged) == (1, 0, 2 * WORK)
    [report] = read_reports(world.store, world.spec, VALIDATOR.hotkey)
    row = next(row for row in report.members if row.hotkey == named.hotkey)
    assert (row.code, row.round_score, row.tokens_merged) == ("guard_suspect", 0.0, 0)
    assert "held-out loss" in row.why
    assert verify_run(world.store, "demo").merges == 1


def test_a_delta_that_vanished_after_the_plan_is_left_out(dataset: Dataset) -> None:
    world = lenient(dataset)

    async def go() -> None:
        await world.begin()
        validator = world.validator(until=1)
        gone = world.miners[0]
        while world.log().open_round is None or world.log().open_round.plan is None:  # type: ignore[union-attr]
            await validator.driver.step()
            await play(world, validator)
            world.clock.advance(0.25)
        for info in list(world.store.list("runs/demo/rounds/0/")):
            if gone.signer.hotkey in info.key and info.key.endswith(".delta"):
                world.store.delete(info.key)
        again = world.validator(until=1)  # the first one has the bytes in memory
        world.clock.advance(20.0)
        await drive(world, again, 1)

    asyncio.run(go())
    plan = [data for data in entries(world) if isinstance(data, RoundFrozen)][-1]
    [named] = [member for member in plan.members if member.decision == "rejected"]
    assert (plan.attempt, named.hotkey) == (1, world.miners[0].signer.hotkey)
    assert "can't be merged any more" in named.reason
    assert world.log().tokens_merged == 2 * WORK


def test_three_rounds_that_fail_for_their_content_pause_the_run_until_the_owner_resumes_it(dataset: Dataset) -> None:
    world = lenient(dataset)

    async def go() -> None:
        await world.begin()
        poison(world.miners)
        validator = world.validator(until=1)
        await until_paused(world, validator)
        world.clock.advance(1.0)
        told = validator.service.status().paused
        assert "loss_guard" in told
        assert "brigade run resume" in told
        await steps(world, validator, 4, 10.0)
        assert world.log().open_round is None
        again = world.validator(until=1)
        world.clock.advance(20.0)
        await steps(world, again, 4, 10.0)
        assert world.log().paused is not None
        assert again.service.status().paused == told
        for miner in world.miners:
            miner.twist = honest
        put_command(world.store, resume_command(world.log(), OWNER, 1))
        await drive(world, again, 1)

    asyncio.run(go())
    data = entries(world)
    aborts = [entry for entry in data if isinstance(entry, RoundAborted)]
    assert [abort.code for abort in aborts] == ["loss_guard"] * MAX_FAILURES
    assert all(any("alone would make" in fact for fact in abort.evidence) for abort in aborts)
    [pause] = [entry for entry in data if isinstance(entry, Paused)]
    assert all(any(f"round {number} loss_guard" in fact for fact in pause.evidence) for number in range(3))
    assert len([entry for entry in data if isinstance(entry, Resumed)]) == 1
    assert (world.log().head, world.log().failures) == (1, ())
    assert verify_run(world.store, "demo").merges == 1


def test_orders_that_are_not_the_owners_or_of_another_pause_resume_nothing(dataset: Dataset) -> None:
    world = lenient(dataset)

    async def go() -> None:
        await world.begin()
        poison(world.miners)
        validator = world.validator(until=1)
        await until_paused(world, validator)
        state = world.log()
        assert state.paused is not None
        put_command(world.store, resume_command(state, world.miners[0].signer, 1))
        old = dataclasses.replace(state, paused=dataclasses.replace(state.paused, seq=3))
        put_command(world.store, resume_command(old, OWNER, 1))
        await steps(world, validator, 10, 10.0)

    asyncio.run(go())
    assert world.log().paused is not None


def test_a_throttling_storage_changes_neither_redo_nor_pause_nor_resumption(dataset: Dataset) -> None:
    """Every fifth operation is told to slow down, through a redone plan, a pause and its end."""
    world = lenient(dataset)
    count = [0]

    def throttle(operation: str, key: str) -> None:
        count[0] += 1
        if count[0] % 5 == 0:
            raise Retryable("503: slow down", 0.0)

    async def until(validator: Validator, done: Callable[[], bool]) -> None:
        for _ in range(1500):
            await validator.driver.step()
            if done():
                return
            with contextlib.suppress(Retryable):  # the miner tries again at its next turn
                await play(world, validator)
            world.clock.advance(0.25)
        raise AssertionError(f"the run stands still: {validator.board.waiting_for}")

    async def go() -> None:
        await world.begin()
        poison(world.miners[:1])
        validator = world.validator()
        world.store.before = throttle
        await until(validator, lambda: world.log().head == 1)
        poison(world.miners)
        await until(validator, lambda: world.log().paused is not None)
        for miner in world.miners:
            miner.twist = honest
        with world.unwatched():
            put_command(world.store, resume_command(world.log(), OWNER, 1))
        await until(validator, lambda: world.log().head == 2)

    asyncio.run(go())
    world.store.before = None
    assert count[0] > 100
    assert (world.log().rounds_committed, world.log().rounds_aborted) == (2, MAX_FAILURES)
    assert verify_run(world.store, "demo").merges == 2


def test_rounds_without_members_never_pause_the_run(world: World) -> None:
    async def go() -> None:
        await world.begin()
        validator = world.validator(until=1)
        for _ in range(MAX_FAILURES + 1):
            aborted = world.log().rounds_aborted
            for miner in world.miners:
                miner.silent = False
            await steps(world, validator, 4)
            for miner in world.miners:
                miner.silent = True
            while world.log().rounds_aborted == aborted:
                await validator.driver.step()
                world.clock.advance(1.0)
        for miner in world.miners:
            miner.silent = False
        await drive(world, validator, 1)

    asyncio.run(go())
    assert (world.log().rounds_aborted, world.log().head) == (MAX_FAILURES + 1, 1)
