"""The driver while storage, lease, chain or its own process are away: it holds, and loses nothing."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from common import keys
from common.data.dataset import Dataset
from common.errors import Rejected, RemoteError, Retryable
from common.identity import KeypairSigner
from common.runlog.casput import Patience
from common.runlog.entries import LeaderChanged
from common.runlog.writer import LogWriter
from common.store.retry import NO_RETRIES
from common.timeouts import LEASE_S
from common.units import sha256_hex
from tests.support.specs import OWNER, VALIDATOR
from tests.validator.world import WORK, World, drive, play, steps
from validator.process import Validator
from validator.round.facts import Phase as RoundPhase
from validator.run_leaders import change_leaders


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
        assert validator.board.round.state.held_s == after_s - before_s, "what may be claimed grows as much"
        await drive(world, validator, 1)

    asyncio.run(go())
    assert world.log().rounds_aborted == 0


def test_time_without_storage_between_two_rounds_is_the_next_ones(world: World) -> None:
    async def go() -> None:
        await world.begin()
        validator = world.validator(until=2)
        await drive(world, validator, 1)
        assert validator.board.round is None

        def away(operation: str, key: str) -> None:
            raise Retryable("no connection to the storage")

        world.store.before = away
        for _ in range(20):
            await validator.driver.step()
            world.clock.advance(5.0)
        world.store.before = None
        await validator.driver.step()
        assert validator.board.round is not None
        assert 95.0 <= validator.board.round.state.held_s <= 100.0
        await drive(world, validator, 2)
        assert validator.board.held.seconds == 0.0, "it passed before that round closed"

    asyncio.run(go())


def test_a_new_leader_counts_the_time_since_the_round_was_opened(world: World) -> None:
    async def go() -> None:
        await world.begin()
        await steps(world, world.validator(until=1), 4)
        world.clock.advance(600.0)
        validator = world.validator(until=1)
        while validator.board.round is None:
            await validator.driver.step()
            world.clock.advance(5.0)
        state = validator.board.round.state
        assert 600.0 <= state.held_s <= 640.0
        assert 600.0 <= state.unheard_s <= state.held_s, "nobody can have told it of that time"
        for miner in world.miners:
            seen = validator.board.members.seen(miner.signer.hotkey, sha256_hex(b"what it was sent before"))
            assert seen.earlier, "it may have worked all that time"
        await drive(world, validator, 1)

    asyncio.run(go())
    assert world.log().tokens_merged == 3 * WORK


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


REFUSED = Rejected("access_denied", "the keys are being changed")
THROTTLED = Retryable("503: slow down", 1.0)


@pytest.mark.parametrize("fault", [REFUSED, THROTTLED], ids=["refused", "throttled"])
@pytest.mark.parametrize("part", [".update", ".delta", "/reports/", "lease.json", "/rounds/0/", "/log/"])
def test_a_storage_that_refuses_for_a_while_costs_no_round_no_submission_and_no_score(
    world: World, part: str, fault: RemoteError
) -> None:
    """A service that restarts or changes its keys answers 403 to everything for some seconds; a busy one 503."""
    refusals = [0]

    def refuse(operation: str, key: str) -> None:
        if part in key and not (key.endswith(".delta") and operation == "put") and refusals[0] < 3:
            refusals[0] += 1
            raise fault

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


def test_a_leader_that_its_owner_no_longer_names_steps_down_and_leads_again_once_it_is_named(dataset: Dataset) -> None:
    other = KeypairSigner.from_uri("//Other")
    world = World(dataset)

    def name(signer: KeypairSigner) -> None:
        change_leaders(world.store, world.log(), OWNER, [signer.hotkey], lambda _: None)

    async def go() -> None:
        await world.begin()
        validator = world.validator(until=1)
        await steps(world, validator, 4)
        assert validator.board.leadership.leading
        name(other)
        await steps(world, validator, 12)
        assert not validator.board.leadership.leading
        assert "does not let this hotkey lead" in validator.board.waiting_for
        name(VALIDATOR)
        await drive(world, validator, 1)

    asyncio.run(go())
    state = world.log()
    assert (state.head, state.term, state.voids) == (1, 2, ())
