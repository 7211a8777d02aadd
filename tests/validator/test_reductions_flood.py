"""Owners that flood the door for means: what they can store is bounded by their duties, whatever they sign."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from common.data.dataset import Dataset
from common.errors import Retryable
from common.identity import sign_record
from common.reductions import REDUCTION, Reduction
from common.wire import ErrorReply, HeartbeatReply, parse
from tests.validator.butterflies import (
    bytes_of_a_leader_alone,
    check_round,
    owners,
    stored,
    until_committed,
)
from tests.validator.reductiondesk import MINERS, Desk, accepted, as_body, dealt, refused
from tests.validator.test_api import beat
from tests.validator.world import World
from validator.api.limits import MOST_AT_ONCE


@pytest.fixture(scope="module")
def alone(dataset: Dataset) -> tuple[object, ...]:
    return bytes_of_a_leader_alone(dataset, MINERS)


async def one_after_the_other(desk: Desk, words: list[Reduction]) -> None:
    for word in words:
        await desk.tell(word)


async def at_once(desk: Desk, words: list[Reduction]) -> None:
    await asyncio.gather(*(desk.tell(word) for word in words))


Way = Callable[[Desk, list[Reduction]], Awaitable[None]]


@pytest.mark.parametrize("way", [one_after_the_other, at_once])
def test_what_a_miner_can_store_is_bounded_by_its_duties(dataset: Dataset, alone: tuple[object, ...], way: Way) -> None:
    """The same word signed anew is other bytes each time, and there are 2^n words of n copies."""

    async def go() -> World:
        async with dealt(dataset) as desk:
            made = desk.work()
            one, two, three = made.word.copies
            desk.put(accepted(await desk.tell(made.word)), made)
            words = [
                dataclasses.replace(made.word, copies=copies)
                for copies in ((one,), (two,), (one, two), (two, one), (three,), (one, three), (one, two, three))
            ]
            await way(desk, [word for word in words[:4] for _ in range(6)])
            await desk.keep_leading()
            await way(desk, [word for word in words for _ in range(4)])
            mine = [key for key in stored(desk.world, "reduction") if desk.miner.signer.hotkey in key]
            assert 1 <= len(mine) <= 3, "one word for each duty at most"
            assert len(stored(desk.world, "mean")) == 3
            await desk.keep_leading()
            await until_committed(desk.world, desk.validator, owners(desk.world))
            return desk.world

    check_round(asyncio.run(go()), alone, set())


def test_a_word_that_could_not_be_stored_does_not_count_until_it_is(
    dataset: Dataset, alone: tuple[object, ...]
) -> None:
    async def go() -> World:
        async with dealt(dataset) as desk:
            made = desk.work()
            desk.put(accepted(await desk.tell(made.word)), made)
            desk.world.store.fail_next(Retryable("the storage is away"), operation="put", key_part="/reductions/")
            assert refused(await desk.tell(made.word)) == (503, "away")
            asked = parse(HeartbeatReply, (await desk.post(beat(seq=99), path="/v1/heartbeat")).content).reduce
            assert asked is not None
            assert len(asked.duties) == 3
            assert accepted(await desk.tell(made.word)).uploads == ()
            assert len(stored(desk.world, "reduction")) == 1
            await until_committed(desk.world, desk.validator, owners(desk.world))
            return desk.world

    check_round(asyncio.run(go()), alone, set())


@pytest.mark.parametrize("patient", [True, False], ids=["who waits", "who hangs up"])
def test_few_words_of_one_miner_wait_while_the_storage_hangs(
    dataset: Dataset, alone: tuple[object, ...], patient: bool
) -> None:
    more = 5

    async def go() -> World:
        async with dealt(dataset) as desk:
            made, hangs = desk.work(), threading.Event()
            asked = {number: desk.work(number) for number in desk.views}

            def before(operation: str, key: str) -> None:
                if operation == "head" and key.endswith(".mean"):
                    assert hangs.wait(60.0)

            desk.world.store.before = before
            posts = {asyncio.create_task(desk.tell(made.word)) for _ in range(MOST_AT_ONCE + more)}
            waiting = posts
            while len(waiting) > MOST_AT_ONCE:
                turned, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for post in turned:
                    assert refused(post.result()) == (429, "too_many_waiting")
                    assert int(post.result().headers["retry-after"]) >= 1
                    assert (parse(ErrorReply, post.result().content).retry_after_s or 0) > 0
            if not patient:
                for post in waiting:
                    post.cancel()
                await asyncio.wait(waiting)
            assert refused(await desk.tell(made.word)) == (429, "too_many_waiting"), "who is gone is still answered"
            beats = await desk.post(beat(seq=99), path="/v1/heartbeat")
            assert beats.status_code == 200, "it is heard meanwhile"
            others = asyncio.create_task(desk.tell(asked[1].word, 1))
            hangs.set()
            accepted(await others)
            for post in waiting if patient else ():
                accepted(await post)
            while (answer := await desk.tell(made.word)).status_code == 429:
                await desk.keep_leading()
            desk.put(accepted(answer), made)
            await desk.keep_leading()
            await until_committed(desk.world, desk.validator, owners(desk.world))
            return desk.world

    check_round(asyncio.run(go()), alone, set())


# Fuzz.

json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=10,
)


@pytest.fixture(scope="module")
def fuzzed(dataset: Dataset) -> Iterator[tuple[Desk, Reduction, asyncio.AbstractEventLoop]]:
    loop, stack = asyncio.new_event_loop(), contextlib.AsyncExitStack()
    desk = loop.run_until_complete(stack.enter_async_context(dealt(dataset)))
    yield desk, desk.work().word, loop
    loop.run_until_complete(stack.aclose())
    loop.close()


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(("schema", "run", "round", "plan_sha256", "copies", "more")), json_values)
def test_whatever_an_owner_signs_the_answer_is_typed_and_nothing_is_stored(
    fuzzed: tuple[Desk, Reduction, asyncio.AbstractEventLoop], field: str, value: Any
) -> None:
    desk, word, loop = fuzzed
    body = {**as_body(word), field: value}
    assume(body != as_body(word))
    try:
        record = sign_record(REDUCTION, body, desk.miner.signer).to_json()
    except ValueError:  # no canonical form, so nobody can sign it
        record = {"body": body, "signature": "0" * 128}

    async def go() -> None:
        await desk.keep_leading()
        status, code = refused(await desk.post(json.dumps({"reduction": record}).encode()))
        assert (400 <= status < 500, bool(code)) == (True, True)
        assert stored(desk.world, "mean") == stored(desk.world, "reduction") == []

    loop.run_until_complete(go())
