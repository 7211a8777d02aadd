"""The driver of a storage that answers, but never gives one object, or gives other bytes: no round waits for it."""

from __future__ import annotations

import asyncio
import contextlib
import threading

import pytest

from common.errors import Rejected, Retryable
from common.runlog.entries import EntryData, RoundFrozen
from common.runlog.state import RunState
from tests.validator.world import WORK, Miner, World, drive, steps, turn
from validator.process import Validator


def test_one_object_that_the_storage_never_gives_holds_up_nobody(world: World) -> None:
    """Its sender is deferred, keeps all its work, and is merged once the storage gives the object again."""

    async def go() -> None:
        await world.begin()
        validator = world.validator(until=2)
        _lose(world, world.miners[0])
        await _patiently(world, validator, 1)
        state = world.log()
        assert (state.rounds_aborted, state.tokens_merged) == (0, 2 * WORK)
        assert [member.hotkey for member in state.deferred] == [world.miners[0].signer.hotkey]
        world.store.before = None
        await _patiently(world, validator, 2)

    asyncio.run(go())
    state = world.log()
    assert (state.head, state.rounds_aborted) == (2, 0)
    assert state.tokens_merged > 5 * WORK, "what was deferred is merged by its weight"


def test_a_planned_delta_that_can_not_be_read_any_more_costs_one_round(world: World) -> None:
    """The log names it, and the leader that had read it is dead: the round ends by its deadline, the next lacks it."""

    async def go() -> None:
        await world.begin()
        validator = world.validator(until=1)
        while (opened := world.log().open_round) is None or opened.plan is None:
            await steps(world, validator, 1)
        _lose(world, world.miners[0])
        await _patiently(world, world.validator(until=1), 1)

    asyncio.run(go())
    state = world.log()
    assert (state.head, state.rounds_aborted) == (1, 1)
    assert state.tokens_merged >= 2 * WORK


def test_an_object_that_comes_for_ever_holds_up_nobody(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("validator.effects.LEAST_LOOK_S", 2.0)
    monkeypatch.setattr("validator.round.deadlines.READ_SHARE", 0.0)
    ended = threading.Event()

    def hang(operation: str, key: str) -> None:
        if operation == "get" and f"/rounds/0/0/{world.miners[0].signer.hotkey}" in key and key.endswith(".delta"):
            ended.wait()

    async def go() -> None:
        await world.begin()
        validator, first = world.validator(until=1), world.miners[0]
        world.store.before = hang
        while world.log().head == 0:
            await validator.driver.step()
            reply = first.beat(validator)
            first.train(32)
            if reply.round is not None and reply.round.instruction == "submit" and first.submitted is None:
                await first.deliver(validator, complete=False)
            for miner in world.miners[1:]:
                await turn(miner, validator)
            world.clock.advance(0.25)

    try:
        asyncio.run(go())
    finally:
        ended.set()
    state = world.log()
    assert (state.head, state.tokens_merged) == (1, 2 * WORK)
    assert [member.hotkey for member in state.deferred] == [world.miners[0].signer.hotkey]


def test_wrong_bytes_are_read_once_however_often_their_sender_asks(world: World) -> None:
    """What came in parts may be anything of the right size; once it is put again, it is read again."""
    reads: list[str] = []

    async def go() -> None:
        await world.begin()
        validator, miner = world.validator(until=1), world.miners[0]
        await steps(world, validator, 3)
        made = miner.make(world.log())
        await miner.announce(validator, made)
        world.store.put(made.manifest.key, bytes(len(made.body)))
        world.store.before = lambda operation, key: reads.append(key) if operation == "get" else None
        codes = {(await miner.complete(validator, made)).code for _ in range(5)}
        assert (codes, reads.count(made.manifest.key)) == ({"checksum_mismatch"}, 1)
        world.store.put(made.manifest.key, made.body)
        assert (await miner.complete(validator, made)).accepted

    asyncio.run(go())


def _lose(world: World, miner: Miner) -> None:
    """From now on the storage gives nothing of what this one hands in to round 0."""

    def refuse(operation: str, key: str) -> None:
        if operation == "get" and f"/rounds/0/0/{miner.signer.hotkey}" in key:
            raise Retryable("500: an internal error")

    world.store.before = refuse


async def _patiently(world: World, validator: Validator, until_revision: int) -> None:
    """Play until the log has the revision, with miners that come again when the storage refuses."""
    for _ in range(2000):
        wait_s = await validator.driver.step()
        if validator.board.journal.state.head >= until_revision and validator.board.round is None:
            return
        for miner in world.miners:
            with contextlib.suppress(Retryable):
                await turn(miner, validator)
        world.clock.advance(max(0.25, wait_s))
    raise AssertionError(f"not there yet: {validator.board.waiting_for}")


def test_a_plan_that_the_rules_refuse_ends_the_round_and_moves_no_deadline(world: World) -> None:
    async def go() -> None:
        await world.begin()
        validator = world.validator(until=1)
        append, refused = validator.board.journal.append, 0

        async def refuse_plans(data: EntryData, reason: str, term: int) -> RunState:
            nonlocal refused
            if isinstance(data, RoundFrozen) and not refused:
                refused += 1
                raise Rejected("bad_plan", "members are ordered by shard and hotkey, each once")
            return await append(data, reason, term)

        validator.board.journal.append = refuse_plans  # type: ignore[method-assign]
        await drive(world, validator, 1)

    asyncio.run(go())
    state = world.log()
    assert (state.rounds_aborted, state.rounds_committed) == (1, 1)
