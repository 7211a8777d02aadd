"""Slow owners, and a round with little time or none: the leader fills in, commits the same bytes, and blames nobody."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from common.blocking import in_thread
from common.data.dataset import Dataset
from common.errors import Rejected, Retryable
from common.runlog.commands import abort_command, put_command
from tests.support.specs import OWNER
from tests.validator.butterflies import (
    EVERYBODY,
    MINERS,
    UNDRAWN,
    bytes_of_a_leader_alone,
    check_round,
    hand_in,
    owners,
    reductions_told,
    stored,
    until_committed,
    until_dealt,
    work,
)
from tests.validator.world import World, play
from validator.process import Validator
from validator.round.deadlines import REDUCE_SHARE, Deadlines


@pytest.fixture(scope="module")
def alone(dataset: Dataset) -> tuple[object, ...]:
    return bytes_of_a_leader_alone(dataset)


def late_ones(told: list[str]) -> set[str]:
    """Whom the leader calls late in the only reduction it tells of."""
    [line] = told
    return set(line.rpartition("late: ")[2].split(", "))


def hotkeys(world: World, numbers: set[int]) -> set[str]:
    return {str(world.miners[number].signer.hotkey) for number in numbers} or {"nobody"}


def test_who_hands_in_after_the_deadline_is_late_and_no_liar_and_loses_nothing(
    dataset: Dataset, alone: tuple[object, ...]
) -> None:
    world = World(dataset, reduce=UNDRAWN)
    refused: list[str] = []

    async def go() -> None:
        await world.begin(MINERS)
        validator = world.validator(until=1)
        asked = await until_dealt(world, validator)
        slow = max(asked)
        made = {number: work(world, world.miners[number], view) for number, view in asked.items()}
        for number in asked.keys() - {slow}:
            await hand_in(validator, world.miners[number], made[number])

        async def turn(_: Validator) -> None:
            replies = [miner.beat(validator) for miner in world.miners]
            current = validator.board.round
            if current is None or current.merged is None:
                return
            assert all(reply.reduce is None for reply in replies), "asked for duties though the merge is done"
            with pytest.raises(Rejected) as caught:
                await hand_in(validator, world.miners[slow], made[slow])
            refused.append(caught.value.code)

        closes_s = world.clock.monotonic_s() + asked[slow].seconds_left
        await until_committed(world, validator, turn)
        assert world.clock.monotonic_s() >= closes_s
        assert late_ones(told) == hotkeys(world, {slow})

    with reductions_told() as told:
        asyncio.run(go())
    assert set(refused) == {"round_closed"}
    check_round(world, alone, set())


def test_an_owner_that_runs_out_of_time_is_believed_what_it_handed_in(
    dataset: Dataset, alone: tuple[object, ...]
) -> None:
    """Each mean by a word of its own; the commit names all words that it rests on."""
    world = World(dataset, reduce=UNDRAWN)

    async def go() -> None:
        await world.begin(MINERS)
        validator = world.validator(until=1)
        asked = await until_dealt(world, validator)
        last = max(duty.partition for view in asked.values() for duty in view.duties)
        for number, view in asked.items():
            miner, made = world.miners[number], work(world, world.miners[number], view)
            copies = [copy for copy in made.word.copies if copy.partition < last]
            for copy in copies:
                await hand_in(validator, miner, replace(made, word=replace(made.word, copies=(copy,))))
        await until_committed(world, validator, owners(world, late=EVERYBODY))

    with reductions_told() as told:
        asyncio.run(go())
    assert told[0].startswith("round 0: 2 of 3 partitions reduced by miners, 1 here: 1 for a late owner")
    check_round(world, alone, set())
    reduced = world.log().head_node.reduced
    assert reduced is not None
    assert len(reduced.words) == 4, "of two owners for each of two partitions"


def test_no_duties_are_asked_for_once_the_deadline_has_come(dataset: Dataset, alone: tuple[object, ...]) -> None:
    world = World(dataset, reduce=UNDRAWN)

    async def go() -> None:
        await world.begin(MINERS)
        validator = world.validator(until=1)
        asked = await until_dealt(world, validator)
        world.clock.advance(max(view.seconds_left for view in asked.values()))
        assert all(miner.beat(validator).reduce is None for miner in world.miners)
        await until_committed(world, validator, owners(world, late=EVERYBODY))

    asyncio.run(go())
    check_round(world, alone, set())


async def storage_away(world: World, validator: Validator, seconds: float) -> None:
    """The miners are heard all the while."""

    def away(operation: str, key: str) -> None:
        raise Retryable("no connection to the storage")

    world.store.before = away
    until_s = world.clock.monotonic_s() + seconds
    while world.clock.monotonic_s() < until_s:
        world.clock.advance(5.0)
        await validator.driver.step()
        assert "holding" in validator.board.waiting_for
        for miner in world.miners:
            miner.beat(validator)
    world.store.before = None


async def asleep(world: World, validator: Validator, seconds: float) -> None:
    world.clock.advance(seconds)


@pytest.mark.parametrize("held", [storage_away, asleep])
def test_time_that_is_held_is_not_the_owners(
    dataset: Dataset, alone: tuple[object, ...], held: Callable[[World, Validator, float], Awaitable[None]]
) -> None:
    """While the storage is away, or the leader asleep, nobody can hand in: the deadline moves with the round's."""
    world = World(dataset, reduce=UNDRAWN)

    async def go() -> None:
        await world.begin(MINERS)
        validator = world.validator(until=1)
        asked = await until_dealt(world, validator)
        before_s = world.clock.monotonic_s() + max(view.seconds_left for view in asked.values())
        await held(world, validator, 3 * max(view.seconds_left for view in asked.values()))
        await validator.driver.step()
        assert world.clock.monotonic_s() > before_s
        again = {number: miner.beat(validator).reduce for number, miner in enumerate(world.miners)}
        assert {number for number, view in again.items() if view is not None} == asked.keys()
        left_s = max(view.seconds_left for view in again.values() if view is not None)
        assert 0 < left_s <= max(view.seconds_left for view in asked.values())
        await until_committed(world, validator, owners(world))

    with reductions_told() as told:
        asyncio.run(go())
    assert told[0].startswith("round 0: 3 of 3 partitions reduced by miners; late: nobody")
    check_round(world, alone, set())


def hold_the_merge(world: World, reached: threading.Event, go_on: threading.Event) -> None:
    """The leader begins to compute, and waits."""

    def before(operation: str, key: str) -> None:
        if operation == "get" and key.endswith((".mean", ".delta")):
            reached.set()
            assert go_on.wait(60.0)

    world.store.before = before


def hold_the_word(world: World, reached: threading.Event, go_on: threading.Event) -> None:
    """The leader writes an owner's word down, and the storage takes its time."""

    def before(operation: str, key: str) -> None:
        if operation == "put" and "/reductions/" in key:
            reached.set()
            assert go_on.wait(60.0)

    world.store.before = before


async def to_the_deadline(world: World, validator: Validator, seconds: float) -> None:
    """The lease is renewed beside the driver's steps."""
    world.clock.advance(seconds)
    await validator.board.leadership.renew()


@pytest.mark.parametrize("told_before", [False, True], ids=["told while it merges", "told before, noted meanwhile"])
def test_who_hands_in_exactly_while_the_leader_merges_does_not_count(
    dataset: Dataset, alone: tuple[object, ...], told_before: bool
) -> None:
    world = World(dataset, reduce=UNDRAWN)

    async def go() -> None:
        await world.begin(MINERS)
        validator = world.validator(until=1)
        asked = await until_dealt(world, validator)
        slow = min(asked)
        made = {number: work(world, world.miners[number], view) for number, view in asked.items()}
        for number in asked.keys() - {slow}:
            await hand_in(validator, world.miners[number], made[number])
        miner, reached, go_on = world.miners[slow], threading.Event(), threading.Event()
        await validator.service.reduced(miner.caller, made[slow].request(miner))
        deadline_s, again = max(view.seconds_left for view in asked.values()), []
        if told_before:
            hold_the_word(world, reached, go_on)
            word = asyncio.create_task(hand_in(validator, miner, made[slow]))
            await in_thread(reached.wait)
            requests = [made[slow].request(miner) for _ in range(4)]
            again = [asyncio.create_task(validator.service.reduced(miner.caller, request)) for request in requests]
            await asyncio.sleep(0)  # each is taken in, and waits behind the first
            await to_the_deadline(world, validator, deadline_s)
            await validator.driver.step()
        else:
            hold_the_merge(world, reached, go_on)
            await to_the_deadline(world, validator, deadline_s)
            step = asyncio.create_task(validator.driver.step())
            await in_thread(reached.wait)
            word = asyncio.create_task(hand_in(validator, miner, made[slow]))
            await asyncio.wait({word})
        go_on.set()
        for late in (word, *again):
            with pytest.raises(Rejected, match="round_closed"):
                await late
        if not told_before:
            await step
        world.store.before = None
        words = [key for key in stored(world, "reduction") if miner.signer.hotkey in key]
        assert len(words) == told_before, "what was under way; the words that waited behind it left nothing"
        await until_committed(world, validator, owners(world, late=EVERYBODY))
        assert late_ones(told) == hotkeys(world, {slow})

    with reductions_told() as told:
        asyncio.run(go())
    check_round(world, alone, set())


@pytest.mark.parametrize("late", [{0, 1, 2}, EVERYBODY], ids=["most", "all"])
def test_when_most_owners_are_late_nobody_is_blamed_and_all_are_asked_again(dataset: Dataset, late: set[int]) -> None:
    """The storage, or the leader's own link, is more likely than that so many are lazy."""
    world = World(dataset, reduce=UNDRAWN)

    async def go() -> None:
        await world.begin(MINERS)
        validator = world.validator()
        await until_dealt(world, validator)
        await until_committed(world, validator, owners(world, late=late))
        assert (await until_dealt(world, validator)).keys() == EVERYBODY

    asyncio.run(go())


def test_a_round_that_its_owner_ends_in_mid_reduction_asks_nobody_for_more(dataset: Dataset) -> None:
    world = World(dataset, reduce=UNDRAWN)

    async def go() -> None:
        await world.begin(MINERS)
        validator = world.validator()
        asked = await until_dealt(world, validator)
        number, view = min(asked.items())
        made = work(world, world.miners[number], view)
        put_command(world.store, abort_command(world.log(), OWNER, 1))
        world.clock.advance(3.0)
        for _ in range(4):
            await validator.driver.step()
        assert world.log().rounds_aborted == 1
        assert all(miner.beat(validator).reduce is None for miner in world.miners)
        with pytest.raises(Rejected, match="round_closed"):
            await hand_in(validator, world.miners[number], made)
        assert stored(world, "mean") == stored(world, "reduction") == []

    asyncio.run(go())


def test_a_freeze_that_took_long_leaves_the_leader_time_to_merge_alone(
    dataset: Dataset, alone: tuple[object, ...]
) -> None:
    """Judging may take most of the time to finish: what is left must not be spent on waiting for owners."""
    world = World(dataset, reduce=UNDRAWN)

    async def go() -> None:
        await world.begin(MINERS)
        validator = world.validator(until=1)
        await until_planned(world, validator)
        current = validator.board.round
        assert current is not None
        assert current.state.deadline_s is not None
        # As if judging had taken so long: a step within which time passes is no sleep, and no outage.
        slow_s = current.state.deadline_s - world.clock.monotonic_s() - 20.0
        await slowly(world, validator, slow_s)
        await until_committed(world, validator, owners(world, late=EVERYBODY))

    asyncio.run(go())
    check_round(world, alone, set())


async def until_planned(world: World, validator: Validator) -> None:
    """Until the next step appends the plan."""
    for _ in range(300):
        await validator.driver.step()
        current = validator.board.round
        if current is not None and current.judgement is not None:
            return
        await play(world, validator)
        world.clock.advance(0.25)
    raise AssertionError(validator.board.waiting_for)


async def slowly(world: World, validator: Validator, seconds: float) -> None:
    """The step that appends the plan, whose put takes so long."""
    passed = []

    def before(operation: str, key: str) -> None:
        if operation == "put" and "/log/" in key and not passed:
            passed.append(key)
            world.clock.advance(seconds)

    world.store.before = before
    await validator.driver.step()
    world.store.before = None
    assert passed


LATE_BUT_IN_TIME = 0.45
TOO_LATE = 0.55


async def final_after(world: World, validator: Validator, share: float) -> None:
    """The block by which the partitions are dealt is final so much of the time to finish after the plan."""
    await until_planned(world, validator)
    world.clock.advance(0.25)
    await validator.driver.step()
    for _ in range(round(share * Deadlines.of(world.spec).finish_s / 0.25)):
        await validator.driver.step()
        assert all(miner.beat(validator).reduce is None for miner in world.miners)
        world.clock.advance(0.25)


def test_a_deal_that_comes_late_leaves_the_miners_their_time(dataset: Dataset, alone: tuple[object, ...]) -> None:
    """Blocks of a real chain are final when a quarter of the shortest time to finish is over."""
    world = World(dataset, reduce=UNDRAWN)

    async def go() -> None:
        await world.begin(MINERS)
        validator = world.validator(until=1)
        await final_after(world, validator, LATE_BUT_IN_TIME)
        asked = await until_dealt(world, validator)
        left_s = max(view.seconds_left for view in asked.values())
        finish_s = Deadlines.of(world.spec).finish_s
        assert left_s == pytest.approx(REDUCE_SHARE * finish_s, abs=1.0)
        world.clock.advance(left_s / 2)
        await until_committed(world, validator, owners(world))

    with reductions_told() as told:
        asyncio.run(go())
    assert told[0].startswith("round 0: 3 of 3 partitions reduced by miners; late: nobody")
    check_round(world, alone, set())


def test_a_deal_that_comes_too_late_is_not_made(dataset: Dataset, alone: tuple[object, ...]) -> None:
    world = World(dataset, reduce=UNDRAWN)

    async def go() -> None:
        await world.begin(MINERS)
        validator = world.validator(until=1)
        await final_after(world, validator, TOO_LATE)

        async def turn(validator: Validator) -> None:
            assert all(miner.beat(validator).reduce is None for miner in world.miners)

        await until_committed(world, validator, turn)

    asyncio.run(go())
    check_round(world, alone, set())
    assert stored(world, "mean") == stored(world, "reduction") == []
