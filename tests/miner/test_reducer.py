"""A miner's hand-ins: each duty once, again when the leader does not know of it, and from what is held if it can be."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator

import pytest

from common.codec.container import HEADER_BYTES
from common.errors import Rejected
from tests.miner.leader import PATIENCE_S
from tests.miner.reducing import Desk, Miner

PARTITIONS = 4


@pytest.fixture
def desk() -> Iterator[Desk]:
    with Desk() as made:
        yield made


def play(desk: Desk, scene: Callable[[Miner], Awaitable[None]]) -> None:
    async def go() -> None:
        async with desk.miner() as miner:
            await scene(miner)

    asyncio.run(go())


def test_what_is_asked_for_is_read_and_handed_in(desk: Desk) -> None:
    async def scene(miner: Miner) -> None:
        assert desk.missing == PARTITIONS
        await miner.turn()
        assert desk.missing == 0
        deltas = len(desk.plan.members)
        assert desk.reads == deltas + PARTITIONS * deltas, "of each delta the header once, and each range"
        await miner.turn()

    play(desk, scene)
    assert len(desk.words) == 2, "announced and, once the means were put, said to be there"


def test_an_answer_made_before_the_hand_in_was_counted_costs_nothing(desk: Desk) -> None:
    async def scene(miner: Miner) -> None:
        await miner.beat()
        desk.let_beats.clear()
        desk.made.clear()
        late = asyncio.create_task(miner.beat())
        assert await asyncio.to_thread(desk.made.wait, PATIENCE_S)
        await miner.reducer.turn()
        assert desk.missing == 0
        words, reads = len(desk.words), desk.reads
        desk.let_beats.set()
        await late
        await miner.reducer.turn()
        assert (len(desk.words), desk.reads) == (words, reads)

    play(desk, scene)


def test_another_leading_process_is_given_the_same_means_without_a_read(desk: Desk) -> None:
    async def scene(miner: Miner) -> None:
        await miner.turn()
        before, reads = desk.words[-1], desk.reads
        desk.restart()
        await miner.turn()
        assert desk.missing == 0
        assert desk.words[-1].copies == before.copies
        assert desk.reads == reads

    play(desk, scene)


def test_another_process_is_believed_even_when_its_answer_is_older_than_the_hand_in(desk: Desk) -> None:
    """It has counted nothing of what its predecessor did, whenever it was asked."""

    async def scene(miner: Miner) -> None:
        await miner.beat()
        mine, instance = desk.reducing, desk.instance
        desk.restart()
        theirs, heir = desk.reducing, desk.instance
        desk.let_beats.clear()
        desk.made.clear()
        late = asyncio.create_task(miner.beat())
        assert await asyncio.to_thread(desk.made.wait, PATIENCE_S)
        desk.reducing, desk.instance = mine, instance
        await miner.reducer.turn()
        assert desk.missing == 0
        desk.reducing, desk.instance = theirs, heir
        desk.let_beats.set()
        await late
        await miner.reducer.turn()
        assert desk.missing == 0

    play(desk, scene)


def test_a_leader_that_asks_again_when_it_must_have_counted_is_given_it_again(desk: Desk) -> None:
    async def scene(miner: Miner) -> None:
        await miner.turn()
        desk.forget()
        await miner.turn()
        assert desk.missing == 0

    play(desk, scene)


def test_a_hand_in_whose_upload_failed_is_made_again_of_what_is_held(desk: Desk) -> None:
    async def scene(miner: Miner) -> None:
        desk.put_answers = [403]
        with pytest.raises(Rejected):
            await miner.turn()
        reads = desk.reads
        await miner.turn()
        assert desk.missing == 0
        assert desk.reads == reads

    play(desk, scene)


def test_of_another_plan_nothing_is_held(desk: Desk) -> None:
    async def scene(miner: Miner) -> None:
        await miner.turn()
        reads, before = desk.reads, desk.words[-1]
        desk.freeze_again()
        await miner.turn()
        assert desk.missing == 0
        assert desk.reads == reads + (1 + PARTITIONS) * (len(desk.plan.members) - 1)
        assert {copy.mean for copy in desk.words[-1].copies}.isdisjoint(copy.mean for copy in before.copies)

    play(desk, scene)


def test_no_more_is_held_than_may_be(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where two means fit, a turn is of two; the newest two are there when the next leader asks."""
    assert desk.reducing.deal is not None
    largest = max(desk.reducing.deal.sizes.values())
    monkeypatch.setattr("miner.duties.MOST_HELD_BYTES", 2 * largest)
    each = len(desk.plan.members)

    async def scene(miner: Miner) -> None:
        await miner.turn()
        await miner.turn()
        assert desk.missing == 0
        assert desk.reads == (1 + PARTITIONS) * each, "the second turn knew the headers"
        desk.restart()
        await miner.turn()
        assert desk.reads == (1 + PARTITIONS) * each, "what is held comes first"
        await miner.turn()
        assert desk.missing == 0
        assert desk.reads == (1 + PARTITIONS + 2) * each

    play(desk, scene)
    assert max(len(word.copies) for word in desk.words) == 2


def test_one_mean_that_is_larger_than_what_may_be_held_is_made_alone(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("miner.duties.MOST_HELD_BYTES", 1)

    async def scene(miner: Miner) -> None:
        for _ in range(PARTITIONS):
            await miner.turn()
        assert desk.missing == 0

    play(desk, scene)
    assert {len(word.copies) for word in desk.words} == {1}


def test_several_requests_are_under_way_at_a_time(desk: Desk) -> None:
    """Each range waits until that of another delta was asked for too."""
    deltas = len(desk.plan.members)
    together = threading.Barrier(deltas)
    desk.before_read = lambda key, start: (together.wait(PATIENCE_S), None)[1]

    async def scene(miner: Miner) -> None:
        await miner.turn()
        assert desk.missing == 0

    play(desk, scene)


def test_whichever_range_comes_first_the_mean_is_the_same(desk: Desk) -> None:
    """The reads of the plan's first member wait for those of its last; the leader compares what was read, in order."""
    arrived = {member.delta.sha256: threading.Event() for member in desk.plan.members}
    first, *_, last = arrived

    def before(key: str, start: int) -> None:
        if first in key and start > 0:
            assert arrived[last].wait(PATIENCE_S)
        elif last in key and start > 0:
            arrived[last].set()

    desk.before_read = before

    async def scene(miner: Miner) -> None:
        await miner.turn()
        assert desk.missing == 0

    play(desk, scene)


def announced(desk: Desk) -> list[int]:
    """Means in each word that was handed in, in the order in which they were announced."""
    words: dict[object, int] = {word.copies: len(word.copies) for word in desk.words}
    return list(words.values())


def test_what_is_done_early_counts_before_the_rest_is_read(desk: Desk) -> None:
    """Each mean takes longer than a piece may; the ranges of the last come when the other means have counted."""
    starts: set[int] = set()
    waits = threading.Lock()

    def before(key: str, start: int) -> None:
        if start == max(starts) and waits.acquire(blocking=False):
            for _ in range(PARTITIONS - 1):
                assert desk.taken.acquire(timeout=PATIENCE_S)

    async def scene(miner: Miner) -> None:
        desk.before_read = lambda key, start: starts.add(start)
        await miner.turn()
        desk.freeze_again()
        desk.words.clear()
        assert desk.taken.acquire(blocking=False)
        miner.clock.step_s = PATIENCE_S
        desk.before_read = before
        await miner.turn()
        assert desk.missing == 0

    play(desk, scene)
    assert waits.locked()
    assert announced(desk) == [1] * PARTITIONS


def test_large_means_are_handed_in_piece_by_piece(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    assert desk.reducing.deal is not None
    monkeypatch.setattr("miner.means.PIECE_BYTES", 2 * max(desk.reducing.deal.sizes.values()))

    async def scene(miner: Miner) -> None:
        await miner.turn()
        assert desk.missing == 0
        reads = desk.reads
        desk.restart()
        await miner.turn()
        assert desk.missing == 0
        assert desk.reads == reads, "what is held is handed in by pieces too"

    play(desk, scene)
    assert max(announced(desk)) <= 3
    assert len(announced(desk)) >= 2


def test_means_that_were_made_count_though_the_last_can_not_be_had(desk: Desk) -> None:
    starts: set[int] = set()

    def before(key: str, start: int) -> None:
        starts.add(start)

    async def scene(miner: Miner) -> None:
        desk.before_read = before
        await miner.turn()
        desk.freeze_again()
        last = max(starts)

        def refuse(key: str, start: int) -> None:
            if start == last:
                raise Rejected("gone", "it can't be had")

        desk.before_read = refuse
        with pytest.raises(Rejected, match="gone"):
            await miner.turn()
        assert desk.missing == 1
        desk.before_read = None
        await miner.turn()
        assert desk.missing == 0

    play(desk, scene)


def test_a_header_that_came_damaged_is_read_again(desk: Desk) -> None:
    async def scene(miner: Miner) -> None:
        desk.damage = lambda start, found: found if start else bytes(HEADER_BYTES)
        with pytest.raises(Rejected):
            await miner.turn()
        desk.damage = None
        await miner.turn()
        assert desk.missing == 0

    play(desk, scene)
