"""The driver over memory store, memory chain and a clock that stands still: rounds commit, abort, wait and survive."""

from __future__ import annotations

import asyncio
import dataclasses

import numpy as np
import pytest

from common import keys
from common.data.dataset import Dataset
from common.reports import decode_report
from common.runlog.remerge import read_plan
from common.runlog.verify import verify_run
from common.store.reader import StoreReader
from common.wire import Phase
from tests.support.specs import VALIDATOR, tiny_spec
from tests.validator.world import WORK, World, drive, steps
from validator.process import Validator
from validator.round.facts import Phase as RoundPhase
from validator.scoring.reports import read_reports


def test_three_miners_make_two_revisions_that_lower_the_loss(world: World) -> None:
    async def go() -> Validator:
        await world.begin()
        validator = world.validator(until=2)
        await drive(world, validator, 2)
        await validator.scorer.drain()
        return validator

    validator = asyncio.run(go())
    state = world.log()
    assert (state.head, state.rounds_committed, state.rounds_aborted, state.voids) == (2, 2, 0, ())
    assert state.tokens_merged == 2 * 3 * WORK
    report = validator.board.standing.report
    assert report is not None
    assert (report.round, report.revision, report.committed) == (1, 2, True)
    assert report.heldout_loss < report.heldout_loss_base < 5.6
    assert all(member.score > 0 and member.unseen_drop > 0 for member in report.members)
    assert verify_run(world.store, "demo").merges == 2


def test_the_status_and_the_reply_tell_what_happens(world: World) -> None:
    async def go() -> None:
        await world.begin()
        validator = world.validator(until=1)
        await steps(world, validator, 2)
        await validator.driver.step()
        status = validator.service.status()
        assert status.leading
        assert status.round is not None
        assert status.round.phase == "open"
        assert [miner.live for miner in status.miners] == [True, True, True]
        assert "waiting" in status.waiting_for or "training" in status.waiting_for
        reply = world.miners[0].beat(validator)
        assert (reply.leader, reply.next_seq, reply.delivered) == (VALIDATOR.hotkey, world.log().next_seq, False)
        await drive(world, validator, 1)
        await validator.scorer.drain()
        await validator.driver.step()
        world.clock.advance(1.0)
        status = validator.service.status()
        assert (status.head_revision, status.rounds_committed, status.reported_round) == (1, 1, 0)
        assert status.heldout_loss_first is not None
        assert status.heldout_loss_head is not None
        assert status.heldout_loss_head < status.heldout_loss_first
        assert "revision 1 is committed" in status.waiting_for

    asyncio.run(go())


def test_a_miner_that_dies_in_the_round_does_not_abort_it(world: World) -> None:
    async def go() -> None:
        await world.begin()
        validator = world.validator(until=1)
        await steps(world, validator, 3)
        world.miners[0].silent = True
        await drive(world, validator, 1)

    asyncio.run(go())
    state = world.log()
    assert (state.rounds_committed, state.rounds_aborted) == (1, 0)
    plan = read_plan(StoreReader(world.store), state, state.head_node)
    assert len(plan.members) == 2


def test_one_that_joins_in_the_middle_takes_part(world: World) -> None:
    async def go() -> None:
        await world.begin(2)
        validator = world.validator(until=1)
        await steps(world, validator, 3)
        await world.join(7)
        world.clock.advance(5.1)  # the metagraph is read again at most this often
        await validator.board.membership.refresh()
        await drive(world, validator, 1)

    asyncio.run(go())
    state = world.log()
    plan = read_plan(StoreReader(world.store), state, state.head_node)
    assert len(plan.members) == 3


def test_without_a_quorum_the_round_aborts_and_the_base_stays(world: World) -> None:
    async def go() -> None:
        await world.begin()
        validator = world.validator(until=1)
        await steps(world, validator, 3)
        for miner in world.miners:
            miner.silent = True
        for _ in range(60):
            await validator.driver.step()
            world.clock.advance(1.0)
            if world.log().rounds_aborted:
                break
        for miner in world.miners:
            miner.silent = False
        await drive(world, validator, 1)
        await validator.scorer.drain()

    asyncio.run(go())
    state = world.log()
    assert (state.rounds_aborted, state.rounds_committed, state.head) == (1, 1, 1)
    assert state.head_node.round == 1
    assert len(list(world.store.list(keys.reports_prefix("demo", VALIDATOR.hotkey)))) == 2


def test_an_upload_that_nobody_announced_as_complete_still_counts(world: World) -> None:
    async def go() -> None:
        await world.begin(2)
        validator = world.validator(until=1)
        while not (validator.board.round and validator.board.round.state.phase is RoundPhase.CLOSING):
            await validator.driver.step()
            for miner in world.miners:
                miner.beat(validator)
                miner.train(WORK)
            world.clock.advance(0.25)
            if validator.board.round and all(miner.tokens == WORK for miner in world.miners):
                validator.board.round.state = dataclasses.replace(
                    validator.board.round.state, phase=RoundPhase.CLOSING, deadline_s=world.clock.monotonic_s() + 10
                )
        await world.miners[0].deliver(validator)
        await world.miners[1].deliver(validator, complete=False)
        for _ in range(20):
            world.clock.advance(1.0)
            await validator.driver.step()

    asyncio.run(go())
    state = world.log()
    assert state.tokens_merged == 2 * WORK


def test_a_copy_and_a_flipped_delta_are_rejected_with_reasons_and_earn_nothing(dataset: Dataset) -> None:
    world = World(dataset, gates=dataclasses.replace(tiny_spec().gates, cosine_floor=-0.05))

    async def go() -> Validator:
        await world.begin(4)
        world.miners[3].twist = np.negative
        validator = world.validator(until=1)
        await drive(world, validator, 1)
        await validator.scorer.drain()
        return validator

    validator = asyncio.run(go())
    state = world.log()
    plan = read_plan(StoreReader(world.store), state, state.head_node)
    flipped = next(m for m in plan.members if m.hotkey == world.miners[3].signer.hotkey)
    assert (flipped.decision, flipped.code, flipped.weight) == ("rejected", "wrong_direction", 0.0)
    report = validator.board.standing.report
    assert report is not None
    row = next(m for m in report.members if m.hotkey == flipped.hotkey)
    assert (row.round_score, row.score, row.tokens_merged) == (0.0, 0.0, 0)
    assert "wrong_direction" in row.why


def test_trained_tokens_are_reported_once_through_kills_of_miner_and_validator(world: World) -> None:
    async def go() -> Validator:
        await world.begin()
        validator = world.validator(until=1)
        await drive(world, validator, 1)
        await validator.scorer.drain()
        validator = world.validator(until=2)
        await steps(world, validator, 3)
        reborn = world.miners[0]
        reborn.beat(validator)  # what it trained after its last heartbeat would be lost
        reborn.session, reborn.seq, reborn.total = "ab" * 8, 0, 0
        await drive(world, validator, 2)
        await validator.scorer.drain()
        return validator

    asyncio.run(go())
    reader, total = StoreReader(world.store), 0
    for info in world.store.list(keys.reports_prefix("demo", VALIDATOR.hotkey)):
        report, _ = decode_report(reader.fetch(info.key, max_bytes=1 << 20), "demo")
        total += sum(member.tokens_trained for member in report.members)
    assert total == 6 * WORK


def test_draining_miners_may_submit_while_the_round_is_open(world: World) -> None:
    async def go() -> None:
        await world.begin(2)
        validator = world.validator(until=1)
        await steps(world, validator, 2)
        first = world.miners[0]
        first.beat(validator)
        first.phase = Phase.DRAINING
        await first.deliver(validator)
        assert first.beat(validator).delivered
        await drive(world, validator, 1)

    asyncio.run(go())
    assert world.log().rounds_committed == 1


def test_one_huge_claim_ends_no_round_and_is_not_paid(world: World) -> None:
    liar_tokens = 2**53 - 1

    async def go() -> Validator:
        await world.begin()
        validator = world.validator(until=2)
        await steps(world, validator, 3)
        assert validator.board.round is not None
        liar = world.miners[0]
        liar.tokens = liar_tokens
        liar.beat(validator)
        await validator.driver.step()
        assert validator.board.round.state.phase is RoundPhase.OPEN, "the others are at work still"
        liar.tokens = WORK
        await drive(world, validator, 1)
        await validator.scorer.drain()
        await steps(world, validator, 2)
        assert validator.board.round is not None
        liar.tokens = liar_tokens
        liar.beat(validator)
        await validator.driver.step()
        assert validator.board.round.state.phase is RoundPhase.OPEN, "nor later, when rates are proven"
        liar.tokens = 0
        await drive(world, validator, 2)
        return validator

    validator = asyncio.run(go())
    assert world.log().tokens_merged == 2 * 3 * WORK
    assert len(validator.board.members.proven()) == 3


def test_proven_rates_survive_a_restart(world: World) -> None:
    async def go() -> None:
        await world.begin()
        validator = world.validator(until=1)
        await drive(world, validator, 1)
        await validator.scorer.drain()
        before = validator.board.members.proven()
        assert len(before) == 3
        assert world.validator().board.members.proven() == pytest.approx(before)

    asyncio.run(go())


def test_reports_of_several_rounds_are_made_up_for_in_order(world: World) -> None:
    async def go() -> Validator:
        await world.begin()
        validator = world.validator(until=3)
        await drive(world, validator, 3)  # nothing was scored
        again = world.validator(until=3)
        world.clock.advance(20.0)
        await again.driver.step()
        await again.driver.step()
        await again.scorer.drain()
        return again

    asyncio.run(go())
    found = read_reports(world.store, world.spec, VALIDATOR.hotkey)
    assert [(report.round, report.revision) for report in found] == [(0, 1), (1, 2), (2, 3)]
    assert found[0].heldout_loss == found[1].heldout_loss_base
