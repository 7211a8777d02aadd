"""Miners that vanish, are slow, or come back: what they trained is merged, later, or told why not."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from common.data.dataset import Dataset
from common.errors import Rejected
from common.records import open_receipt, sign_receipt
from common.runlog.entries import PlanMember, RoundAborted, RoundFrozen, decode_entry
from common.runlog.verify import verify_run
from common.wire import Phase, UploadTarget
from tests.support.specs import VALIDATOR, tiny_spec
from tests.validator.world import WORK, Made, Miner, World, drive, play, steps
from validator.process import Validator
from validator.round.facts import Phase as RoundPhase
from validator.scoring.reports import read_reports


def plans(world: World) -> list[RoundFrozen]:
    entries = (decode_entry(slot, "demo").data for slot in world.slots())
    return [data for data in entries if isinstance(data, RoundFrozen)]


def aborts(world: World) -> list[RoundAborted]:
    entries = (decode_entry(slot, "demo").data for slot in world.slots())
    return [data for data in entries if isinstance(data, RoundAborted)]


def of(plan: RoundFrozen, miner: Miner) -> list[PlanMember]:
    return [member for member in plan.members if member.hotkey == miner.signer.hotkey]


async def until_closing(world: World, validator: Validator) -> None:
    for _ in range(200):
        await validator.driver.step()
        if validator.board.round is not None and validator.board.round.state.phase is RoundPhase.CLOSING:
            return
        await play(world, validator)
        world.clock.advance(0.25)
    raise AssertionError("the round does not close")


async def slow_round(world: World, validator: Validator, slow: Miner) -> Made:
    """A round that defers what ``slow`` has announced, and commits without it."""
    await until_closing(world, validator)
    slow.beat(validator)
    made = slow.make(world.log())
    assert (await slow.announce(validator, made)).upload is not None
    slow.silent = True
    slow.phase = Phase.UPLOADING
    head = world.log().head
    for _ in range(200):
        await validator.driver.step()
        await play(world, validator)
        slow.beat(validator)
        world.clock.advance(0.25)
        current = validator.board.round
        if current is not None and current.state.base_revision > head:
            return made
    raise AssertionError("the round does not end")


async def bring(validator: Validator, miner: Miner, made: Made) -> None:
    """Announce again what the last plan deferred, and put it."""
    reply = await miner.announce(validator, made)
    assert isinstance(reply.upload, UploadTarget)
    miner.put(reply, made)
    assert (await miner.complete(validator, made)).accepted


def test_the_last_drip_of_a_miner_that_died_is_merged(world: World) -> None:
    async def go() -> Validator:
        await world.begin()
        validator = world.validator(until=1)
        await steps(world, validator, 2)
        dying = world.miners[0]
        await dying.drip(validator, 1)
        world.clock.advance(1.0)
        await dying.drip(validator, 2)
        dying.silent = True
        await drive(world, validator, 1)
        await validator.scorer.drain()
        return validator

    validator = asyncio.run(go())
    [member] = of(plans(world)[0], world.miners[0])
    assert (member.decision, member.tokens) == ("accepted", WORK // 2)
    assert world.log().tokens_merged == 2 * WORK + WORK // 2
    report = validator.board.standing.report
    assert report is not None
    row = next(row for row in report.members if row.hotkey == member.hotkey)
    assert (row.tokens_merged, row.timeliness) == (WORK // 2, None)
    assert row.score > 0
    assert verify_run(world.store, "demo").merges == 1


def test_what_missed_the_freeze_is_merged_by_the_next_plan_at_the_weight_of_late_work(world: World) -> None:
    async def go() -> Validator:
        await world.begin()
        validator = world.validator(until=2)
        await steps(world, validator, 2)
        slow = world.miners[0]
        made = await slow_round(world, validator, slow)
        await bring(validator, slow, made)
        slow.silent = False
        await drive(world, validator, 2)
        await validator.scorer.drain()
        return validator

    asyncio.run(go())
    first, second = plans(world)
    slow = world.miners[0]
    assert [(m.decision, m.round) for m in of(first, slow)] == [("deferred", 0)]
    taken = [(member.decision, member.round, member.base_revision) for member in of(second, slow)]
    assert taken == [("accepted", 0, 0), ("accepted", 1, 1)]
    late = int(WORK * world.spec.round.late_weight)
    assert world.log().head_node.tokens_merged == 3 * WORK + late
    reports = read_reports(world.store, world.spec, VALIDATOR.hotkey)
    rows = [next(row for row in report.members if row.hotkey == slow.signer.hotkey) for report in reports]
    assert (rows[0].decision, rows[0].round_score) == ("deferred", 0.0)
    assert (rows[1].tokens_merged, rows[1].tokens_late, rows[1].timeliness) == (WORK + late, WORK, 0.75)
    assert "came a revision late" in rows[1].why
    assert rows[1].round_score > 0
    assert verify_run(world.store, "demo").merges == 2


def test_what_does_not_come_within_one_round_more_is_rejected_as_too_late(world: World) -> None:
    async def go() -> None:
        await world.begin()
        validator = world.validator(until=3)
        await steps(world, validator, 2)
        slow = world.miners[0]
        made = await slow_round(world, validator, slow)
        await drive(world, validator, 2)
        await validator.driver.step()
        with pytest.raises(Rejected, match="wrong_round"):
            await slow.announce(validator, made)

    asyncio.run(go())
    [late] = of(plans(world)[1], world.miners[0])
    assert (late.decision, late.code, late.round) == ("rejected", "too_late", 0)
    assert verify_run(world.store, "demo").merges == 2


def test_a_new_leader_finds_drips_late_and_adopted_ones_in_the_bucket(world: World) -> None:
    async def go() -> None:
        await world.begin()
        validator = world.validator(until=2)
        await steps(world, validator, 2)
        slow, dying, _ = world.miners
        made = await slow_round(world, validator, slow)
        await bring(validator, slow, made)
        await steps(world, validator, 1)
        await dying.drip(validator, 3)
        dying.silent = True
        again = world.validator(until=2)
        world.clock.advance(20.0)
        slow.silent = False
        await drive(world, again, 2)

    asyncio.run(go())
    slow, dying, _ = world.miners
    second = plans(world)[1]
    assert [m.decision for m in of(second, slow)] == ["accepted", "accepted"]
    assert [(m.decision, m.tokens_claimed) for m in of(second, dying)] == [("accepted", 3 * WORK // 4)]


@pytest.mark.parametrize("restarted", [False, True])
def test_what_an_aborted_round_held_whole_is_adopted_by_the_next(dataset: Dataset, restarted: bool) -> None:
    limits = dataclasses.replace(tiny_spec().round, target_tokens=3 * WORK, quorum_tokens=2 * WORK)
    world = World(dataset, round=limits)

    async def go() -> None:
        await world.begin()
        validator = world.validator(until=1)
        await steps(world, validator, 3)  # until the round's clock runs
        dying = world.miners[0]
        await dying.drip(validator, 2)
        for miner in world.miners:
            miner.silent = True
        for _ in range(200):
            await validator.driver.step()
            world.clock.advance(0.5)
            if world.log().rounds_aborted:
                break
        for miner in world.miners[1:]:
            miner.silent = False
        if restarted:
            validator = world.validator(until=1)
            world.clock.advance(20.0)
        await drive(world, validator, 1)

    asyncio.run(go())
    [abort] = aborts(world)
    assert (abort.code, bool(abort.evidence)) == ("no_quorum", True)
    [adopted] = of(plans(world)[-1], world.miners[0])
    assert (adopted.decision, adopted.round, adopted.tokens) == ("accepted", 0, WORK // 2)
    assert world.log().head_node.round == 1
    assert verify_run(world.store, "demo").merges == 1


def test_when_the_quorum_is_met_a_round_waits_no_longer_than_it_is_worth(world: World) -> None:
    async def go() -> float:
        await world.begin(4)
        validator = world.validator(until=1)
        await steps(world, validator, 2)
        slow = world.miners[0]
        await slow.drip(validator, 3)
        await until_closing(world, validator)
        closed_s = world.clock.monotonic_s()
        slow.silent = True
        head = world.log().head
        while world.log().head == head:
            await validator.driver.step()
            await play(world, validator)
            slow.beat(validator)
            world.clock.advance(0.25)
        return world.clock.monotonic_s() - closed_s

    waited_s = asyncio.run(go())
    assert waited_s < world.spec.round.submit_deadline_s
    [member] = of(plans(world)[0], world.miners[0])
    assert (member.decision, member.tokens) == ("accepted", 3 * WORK // 4)


def test_drips_do_not_flood_and_a_final_is_never_told_to_wait(world: World) -> None:
    async def go() -> None:
        await world.begin()
        validator = world.validator(until=1)
        await steps(world, validator, 2)
        miner = world.miners[0]
        await miner.drip(validator, 1)
        with pytest.raises(Rejected, match="too many requests") as caught:
            await miner.drip(validator, 2)
        assert caught.value.code == "rate_limited"
        await miner.deliver(validator)
        await drive(world, validator, 1)

    asyncio.run(go())
    assert world.log().tokens_merged == 3 * WORK


def test_a_leader_gives_its_own_word_for_what_the_one_before_receipted(world: World) -> None:
    async def go() -> None:
        await world.begin()
        validator = world.validator(until=1)
        await steps(world, validator, 2)
        miner = world.miners[0]
        made = await miner.deliver(validator)
        current = validator.board.round
        assert current is not None
        [held] = current.submissions.everything()
        receipt = dataclasses.replace(held.receipt, signer=miner.signer.hotkey)
        stored = dataclasses.replace(held.stored, receipt=receipt, receipt_record=sign_receipt(receipt, miner.signer))
        current.submissions.add(dataclasses.replace(held, stored=stored))
        word, _ = open_receipt((await miner.announce(validator, made)).receipt, "demo")
        assert (word.signer, word.manifest_sha256) == (VALIDATOR.hotkey, receipt.manifest_sha256)

    asyncio.run(go())


def test_a_drip_whose_object_is_lost_does_not_hold_the_round(world: World) -> None:
    async def go() -> None:
        await world.begin()
        validator = world.validator(until=1)
        await steps(world, validator, 2)
        dead = world.miners[0]
        made = await dead.drip(validator, 2)
        dead.silent = True
        world.store.delete(made.manifest.key)
        await drive(world, validator, 1)

    asyncio.run(go())
    [member] = of(plans(world)[0], world.miners[0])
    assert (member.decision, member.code) == ("deferred", "incomplete")
    assert world.log().tokens_merged == 2 * WORK
