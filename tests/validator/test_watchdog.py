"""The watchdog over a whole validator on a manual clock: what is told while something hurts the run."""

from __future__ import annotations

import asyncio
import contextlib
import threading

from common.errors import RemoteError, Retryable
from common.units import Revision
from common.wire import Phase, UploadProgress
from tests.validator.world import World, drive, play, steps
from validator.process import Validator
from validator.watchdog.facts import Stall


def codes(validator: Validator) -> list[str]:
    return [stall.code for stall in validator.board.stalls]


async def watch(
    world: World, validator: Validator, seconds: float, playing: bool = False, silent: bool = False
) -> tuple[Stall, ...]:
    """Let time pass, with the driver and the watchdog looking as they do, and miners that beat, or work."""
    until_s = world.clock.monotonic_s() + seconds
    while world.clock.monotonic_s() < until_s:
        await validator.driver.step()
        if playing:
            with contextlib.suppress(Retryable):  # what a miner is told while the storage does not give its delta
                await play(world, validator)
        elif not silent:
            for miner in world.miners:
                miner.beat(validator)
        validator.watchdog.look()
        world.clock.advance(1.0)
    return validator.watchdog.look()


def test_a_run_that_goes_on_has_nothing_to_tell(world: World) -> None:
    async def go() -> list[str]:
        await world.begin()
        validator = world.validator(until=2)
        told: list[str] = []
        for _ in range(60):
            await watch(world, validator, 1.0, playing=True)
            told += codes(validator)
        assert validator.board.journal.state.head == 2
        await watch(world, validator, 600.0, playing=True)
        return told + codes(validator)

    assert asyncio.run(go()) == []


def test_a_storage_that_is_away_is_told_with_its_error_and_its_end(world: World) -> None:
    async def go() -> None:
        await world.begin()
        validator = world.validator()
        await steps(world, validator, 4)

        def away(operation: str, key: str) -> None:
            raise Retryable("connection refused")

        world.store.before = away
        world.clock.advance(4.0)
        found = await watch(world, validator, 10.0)
        assert not found
        (stall,) = await watch(world, validator, 10.0)
        assert (stall.code, stall.holds) == ("storage_away", True)
        assert "connection refused" in stall.text
        assert "round 0 (open)" in stall.text
        reply = world.miners[0].beat(validator)
        assert reply.stall == stall.text[:300]
        assert validator.service.status().stalls[0].code == "storage_away"
        await watch(world, validator, 300.0)
        assert codes(validator) == ["storage_away"], "no deadline passes meanwhile"
        world.store.before = None
        await validator.driver.step()
        await play(world, validator)
        assert validator.watchdog.look() == ()
        assert world.miners[0].beat(validator).stall == ""

    asyncio.run(go())


def test_one_object_that_is_not_given_is_told_as_that(world: World) -> None:
    async def go() -> None:
        await world.begin()
        await drive(world, world.validator(until=1), 1)
        validator = world.validator(until=2)
        await steps(world, validator, 3)

        def unreadable(operation: str, key: str) -> None:
            if operation == "get" and key.endswith(".delta"):
                raise Retryable("no bytes of this object")

        world.store.before = unreadable
        seen: set[str] = set()
        for _ in range(200):
            await watch(world, validator, 1.0, playing=True)
            seen |= set(codes(validator))
            if seen:
                break
        assert seen & {"object_unreadable", "read_still"}
        assert "storage_away" not in seen

    asyncio.run(go())


def test_silent_miners_are_named_within_one_deadline(world: World) -> None:
    async def go() -> None:
        await world.begin()
        validator = world.validator()
        await steps(world, validator, 3)
        limit_s = world.spec.round.submit_deadline_s
        found = await watch(world, validator, limit_s + world.spec.round.member_timeout_s + 1, silent=True)
        told = next(stall for stall in found if stall.code == "no_miners")
        assert all(miner.signer.hotkey[:8] in told.text for miner in world.miners)
        assert "training" in told.text
        assert not told.holds, "newcomers are what helps"
        assert world.miners[0].beat(validator).stall == ""
        await validator.driver.step()
        assert "no_miners" not in [stall.code for stall in validator.watchdog.look()]

    asyncio.run(go())


def test_miners_that_do_not_begin_are_named_with_what_they_do(world: World) -> None:
    async def go() -> None:
        await world.begin()
        validator = world.validator()
        for miner in world.miners:
            miner.phase = Phase.SYNCING
        for _ in range(40):
            await validator.driver.step()
            for miner in world.miners:
                miner.beat(validator)
            validator.watchdog.look()
            world.clock.advance(1.0)
        (told,) = validator.board.stalls
        assert (told.code, told.holds) == ("not_training", False)
        assert "syncing" in told.text

    asyncio.run(go())


def test_a_driver_that_hangs_in_a_thread_is_told(world: World) -> None:
    async def go() -> None:
        await world.begin()
        validator = world.validator()
        await steps(world, validator, 4)
        entered, release = threading.Event(), threading.Event()

        def hang(operation: str, key: str) -> None:
            entered.set()
            release.wait()

        world.store.before = hang
        world.clock.advance(4.0)  # the lease is due
        stepping = asyncio.create_task(validator.driver.step())
        while not entered.is_set():
            await asyncio.sleep(0)
        for _ in range(40):
            for miner in world.miners:
                miner.beat(validator)
            validator.watchdog.look()
            world.clock.advance(1.0)
        told = validator.board.stalls[0]
        assert (told.code, told.holds) == ("driver_hangs", True)
        assert validator.service.status().stalls[0].code == "driver_hangs"
        world.store.before = None
        release.set()
        await stepping
        await validator.driver.step()
        assert "driver_hangs" not in [stall.code for stall in validator.watchdog.look()]

    asyncio.run(go())


def test_an_upload_that_stands_still_is_told_with_its_bytes(world: World) -> None:
    async def go() -> None:
        await world.begin()
        validator = world.validator()
        await steps(world, validator, 3)
        slow = world.miners[0]
        slow.upload = UploadProgress(size_bytes=4 << 20, sent_bytes=1 << 20, rate_bps=0.0)
        for _ in range(20):
            await validator.driver.step()
            slow.beat(validator)
            for other in world.miners[1:]:
                other.beat(validator)
            validator.watchdog.look()
            world.clock.advance(1.0)
        told = next(stall for stall in validator.board.stalls if stall.code == "upload_still")
        assert slow.signer.hotkey[:8] in told.text
        assert "1.0 MiB of 4.0 MiB" in told.text

    asyncio.run(go())


def test_a_chain_that_never_answered_is_told_as_the_chain(world: World) -> None:
    async def go() -> None:
        await world.begin()
        await drive(world, world.validator(until=1), 1)
        validator = world.validator(until=2)
        world.chain_world.fail_next["metagraph"] = [RemoteError("no node there")] * 40
        world.clock.advance(20.0)
        found = await watch(world, validator, 40.0)
        assert [stall.code for stall in found] == ["chain_away"]
        assert found[0].holds
        assert "no node there" in found[0].text

    asyncio.run(go())


def test_a_process_that_slept_does_not_tell_its_own_sleep(world: World) -> None:
    async def go() -> None:
        await world.begin()
        validator = world.validator()
        await steps(world, validator, 4)
        validator.watchdog.look()
        world.clock.advance(500.0)
        assert validator.watchdog.look() == ()
        await steps(world, validator, 4)
        assert validator.watchdog.look() == ()

    asyncio.run(go())


def test_rounds_that_abort_in_a_row_are_told_with_their_codes(world: World) -> None:
    async def go() -> None:
        await world.begin()
        validator = world.validator()
        await validator.driver.step()
        board = validator.board
        for _ in range(2):
            board.diary.abort("no_quorum", Revision(0), board.now_s())
        (told,) = validator.watchdog.look()
        assert told.code == "rounds_abort"
        assert "no_quorum, no_quorum" in told.text

    asyncio.run(go())
