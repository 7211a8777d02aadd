"""The driver over memory store, memory chain and a clock that stands still: rounds commit, abort, wait and survive."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses

import pytest

from common import keys
from common.data.dataset import Dataset
from common.errors import Rejected, Retryable
from common.identity import KeypairSigner
from common.reports import decode_report
from common.runlog.casput import Patience
from common.runlog.entries import EntryData, LeaderChanged, RoundFrozen
from common.runlog.remerge import read_plan
from common.runlog.state import RunState
from common.runlog.verify import verify_run
from common.runlog.writer import LogWriter
from common.store.reader import StoreReader
from common.store.retry import NO_RETRIES
from common.timeouts import LEASE_S
from common.wire import Phase
from tests.support.specs import VALIDATOR, tiny_spec
from tests.validator.world import WORK, World, drive, play
from validator.process import Validator
from validator.round.facts import Phase as RoundPhase
from validator.scoring.reports import read_reports


async def steps(world: World, validator: Validator, count: int, seconds: float = 0.25) -> None:
    """Let everybody take turns while time moves."""
    for _ in range(count):
        await validator.driver.step()
        await play(world, validator)
        world.clock.advance(seconds)


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
        assert "revision 1 is reached" in status.waiting_for

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


def test_while_the_storage_is_away_nothing_is_decided_and_no_time_passes(world: World) -> None:
    async def go() -> None:
        await world.begin()
        validator = world.validator(until=1)
        await steps(world, validator, 4)
        assert validator.board.round is not None
        before_s = validator.board.round.state.deadline_s
        assert before_s is not None

        def away(operation: str, key: str) -> None:
            raise Retryable("no connection to the storage")

        world.store.before = away
        world.clock.advance(4.0)  # the lease is due
        await validator.driver.step()
        assert "holding" in validator.board.waiting_for
        for _ in range(20):
            world.clock.advance(5.0)
            assert await validator.driver.step() > 0
        assert validator.board.round.state.phase is RoundPhase.OPEN
        world.store.before = None
        await validator.driver.step()
        after_s = validator.board.round.state.deadline_s
        assert after_s is not None
        assert after_s - before_s >= 100.0
        await drive(world, validator, 1)

    asyncio.run(go())
    assert world.log().rounds_aborted == 0


def test_a_validator_that_was_stopped_does_not_take_its_own_sleep_for_the_miners_silence(world: World) -> None:
    async def go() -> None:
        await world.begin()
        validator = world.validator(until=1)
        await steps(world, validator, 4)
        world.clock.advance(300.0)
        await validator.driver.step()
        await drive(world, validator, 1)

    asyncio.run(go())
    state = world.log()
    assert (state.rounds_aborted, state.tokens_merged) == (0, 3 * WORK)


def test_another_leader_makes_us_follow_and_our_old_term_writes_nothing(dataset: Dataset) -> None:
    other = KeypairSigner.from_uri("//Other")
    world = World(dataset, validators=(VALIDATOR.hotkey, other.hotkey))

    async def go() -> Validator:
        await world.begin()
        validator = world.validator(until=3)
        await steps(world, validator, 4)
        writer = LogWriter(world.store, world.spec, other, world.clock, patience=Patience(NO_RETRIES))
        state = world.log()
        writer.append(state, LeaderChanged("f" * 32), "the other one takes over", state.term + 1)
        await steps(world, validator, 12)
        return validator

    validator = asyncio.run(go())
    state = world.log()
    assert state.leaders[1].hotkey == other.hotkey
    # The other one never renewed a lease, so ours is still there and we lead again, in a later term.
    assert (state.leader, state.term) == (VALIDATOR.hotkey, 3)
    assert validator.board.leadership.term == 3
    assert state.voids == ()


def test_a_copy_and_a_flipped_delta_are_rejected_with_reasons_and_earn_nothing(dataset: Dataset) -> None:
    world = World(dataset, gates=dataclasses.replace(tiny_spec().gates, cosine_floor=-0.05))

    async def go() -> Validator:
        await world.begin(4)
        world.miners[3].sign = -1.0
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


def test_without_a_metagraph_a_takeover_waits(world: World) -> None:
    async def go() -> None:
        await world.begin()
        await drive(world, world.validator(until=1), 1)
        validator = world.validator(until=2)
        world.chain_world.fail_next["metagraph"] = [Retryable("away")]
        world.clock.advance(20.0)
        await validator.driver.step()
        await validator.driver.step()
        assert "seat" in validator.board.waiting_for
        assert validator.board.round is None
        world.clock.advance(6.0)
        await drive(world, validator, 2)

    asyncio.run(go())


def test_a_leader_unsure_of_its_lease_takes_no_submission(world: World) -> None:
    async def go() -> None:
        await world.begin()
        validator = world.validator(until=1)
        await steps(world, validator, 3)
        world.clock.advance(LEASE_S)
        with pytest.raises(Retryable, match="lease"):
            await world.miners[0].deliver(validator)

    asyncio.run(go())


def test_a_deleted_lease_is_taken_anew_and_the_run_goes_on(world: World) -> None:
    async def go() -> None:
        await world.begin()
        validator = world.validator(until=1)
        await steps(world, validator, 3)
        world.store.delete(keys.lease_key("demo"))
        await validator.board.leadership.renew(force=True)
        assert not validator.board.leadership.leading
        await drive(world, validator, 1)
        assert validator.board.leadership.sure()

    asyncio.run(go())
    assert (world.log().rounds_committed, world.log().term) == (1, 2)


def test_a_refused_renewal_does_not_end_the_renewing(world: World) -> None:
    async def go() -> None:
        await world.begin()
        validator = world.validator(until=1)
        await steps(world, validator, 3)
        tries: list[str] = []

        async def refuse(force: bool = False) -> None:
            tries.append("renew")
            raise Rejected("access_denied", "the keys are being changed")

        validator.board.leadership.renew = refuse  # type: ignore[method-assign]
        keeping = asyncio.create_task(validator.driver.keep_lease(0.0))
        while len(tries) < 3:
            await asyncio.sleep(0)
        assert not keeping.done()
        keeping.cancel()

    asyncio.run(go())


@pytest.mark.parametrize("part", [".update", ".delta", "/reports/", "lease.json"])
def test_a_storage_that_refuses_for_a_while_costs_no_round_no_submission_and_no_score(world: World, part: str) -> None:
    """A service that restarts or changes its keys answers 403 to everything for some seconds."""
    refusals = [0]

    def refuse(operation: str, key: str) -> None:
        if part in key and not (part == ".delta" and operation == "put") and refusals[0] < 3:
            refusals[0] += 1
            raise Rejected("access_denied", "the keys are being changed")

    async def patiently_scored(validator: Validator | None) -> None:
        while validator is None or not validator.board.standing.report:
            try:
                validator = validator or world.validator(until=1)
                await validator.driver.step()
                await validator.scorer.drain()
            except Retryable:
                validator = None
                world.clock.advance(20.0)

    async def go() -> None:
        await world.begin()
        validator = world.validator(until=1)
        await steps(world, validator, 2)
        world.store.before = refuse
        for _ in range(60):
            await validator.driver.step()
            with contextlib.suppress(Retryable):  # the miner tries again at its next turn
                await play(world, validator)
            world.clock.advance(0.5)
        await patiently_scored(validator)

    asyncio.run(go())
    state = world.log()
    assert refusals[0] == 3
    assert (state.head, state.rounds_aborted, state.tokens_merged) == (1, 0, 3 * WORK)


def test_the_time_that_a_hanging_storage_takes_does_not_count(world: World) -> None:
    async def go() -> None:
        await world.begin()
        validator = world.validator(until=1)
        await steps(world, validator, 4)
        assert validator.board.round is not None
        before_s = validator.board.round.state.deadline_s
        assert before_s is not None

        def hang(operation: str, key: str) -> None:
            world.clock.advance(30.0)
            raise Retryable("no answer from the storage")

        world.store.before = hang
        world.clock.advance(4.0)  # the lease is due
        began_s = world.clock.monotonic_s()
        await validator.driver.step()
        world.store.before = None
        await validator.driver.step()
        after_s = validator.board.round.state.deadline_s
        assert after_s is not None
        assert after_s - before_s == world.clock.monotonic_s() - began_s > 0

    asyncio.run(go())


def test_a_wait_that_the_storage_asked_for_is_no_sleep_of_ours(world: World) -> None:
    async def go() -> None:
        await world.begin()
        validator = world.validator(until=1)
        await steps(world, validator, 4)

        def busy(operation: str, key: str) -> None:
            raise Retryable("slow down", 60.0)

        world.store.before = busy
        world.clock.advance(4.0)
        assert await validator.driver.step() == 60.0
        world.store.before = None
        world.clock.advance(60.0)
        await validator.driver.step()
        members, now_s = validator.board.members, world.clock.monotonic_s()
        assert not any(members.is_live(member, now_s) for member in members), "nobody spoke for a minute"

    asyncio.run(go())


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
