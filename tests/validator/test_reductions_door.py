"""The door for means over real HTTP: each wrong word has its refusal and changes nothing; floods store nothing."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import httpx
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from common.auth import REPLY_SIGNATURE, check_reply, sign_request
from common.data.dataset import Dataset
from common.errors import Retryable
from common.identity import sign_record
from common.records import ObjectRef
from common.reductions import MAX_COPIES, MAX_REDUCTION_BYTES, REDUCTION, Copy, Reduction, sign_reduction
from common.runlog.verify import verify_run
from common.spec import ReduceSpec
from common.typed import to_json
from common.units import RoundId, Sha256, ShardId
from common.wire import MAX_REQUEST_BYTES, ErrorReply, HeartbeatReply, ReduceView, ReductionReply, parse
from tests.support.specs import VALIDATOR
from tests.validator.butterflies import (
    Work,
    bytes_of_a_leader_alone,
    liars,
    owners,
    stored,
    until_committed,
    until_dealt,
    work,
)
from tests.validator.test_api import beat
from tests.validator.test_server import serving
from tests.validator.world import Miner, World
from validator.api.app import MAX_REDUCTION_REQUEST_BYTES
from validator.api.server import Server
from validator.process import Validator

PATH = "/v1/reductions"
MINERS = 3
EACH_ALL = ReduceSpec("butterfly", 3, 3, 0)
"""Of three miners each owns all of the three partitions."""


class Desk:
    """A leader whose partitions are dealt, behind a real server."""

    def __init__(self, world: World, validator: Validator, http: httpx.AsyncClient) -> None:
        self.world, self.validator, self.http = world, validator, http
        self.views: dict[int, ReduceView] = {}

    @property
    def miner(self) -> Miner:
        return self.world.miners[0]

    def work(self, number: int = 0) -> Work:
        return work(self.world, self.validator, self.world.miners[number], self.views[number])

    async def post(self, body: bytes, number: int = 0, path: str = PATH) -> httpx.Response:
        """Sent by miner ``number``, never faster than a hotkey may. The signature of the answer is checked."""
        self.world.clock.advance(0.2)
        signer = self.world.miners[number].signer
        headers = sign_request(signer, "POST", path, body, VALIDATOR.hotkey, self.world.clock.wall_ns())
        reply = await self.http.post(path, content=body, headers=headers)
        nonce = headers["X-Bittensor-Nonce"]
        check_reply(VALIDATOR.hotkey, nonce, reply.status_code, reply.content, reply.headers[REPLY_SIGNATURE])
        return reply

    async def tell(self, word: Reduction, number: int = 0) -> httpx.Response:
        """A word that its miner signs anew."""
        return await self.post(signed(word, self.world.miners[number]), number)

    def put(self, reply: ReductionReply, made: Work) -> None:
        for target in reply.uploads:
            body = made.bodies[ShardId(target.shard), target.partition]
            self.world.store.redeem_put(target.upload.url, target.upload.headers, body)

    async def keep_leading(self) -> None:
        await self.validator.board.leadership.renew()


def signed(word: Reduction, miner: Miner) -> bytes:
    return json.dumps({"reduction": sign_reduction(word, miner.signer).to_json()}).encode()


def accepted(reply: httpx.Response) -> ReductionReply:
    assert reply.status_code == 200, reply.text
    return parse(ReductionReply, reply.content)


def refused(reply: httpx.Response) -> tuple[int, str]:
    return reply.status_code, parse(ErrorReply, reply.content).code


@contextlib.asynccontextmanager
async def served(dataset: Dataset, how: ReduceSpec, until: int = 1) -> AsyncIterator[Desk]:
    world = World(dataset, reduce=how)
    await world.begin(MINERS)
    validator = world.validator(until=until)
    async with (
        serving(server=Server(validator.app)) as (host, port),
        httpx.AsyncClient(base_url=f"http://{host}:{port}") as http,
    ):
        yield Desk(world, validator, http)


@contextlib.asynccontextmanager
async def dealt(dataset: Dataset, how: ReduceSpec = EACH_ALL, until: int = 1) -> AsyncIterator[Desk]:
    async with served(dataset, how, until) as desk:
        desk.views = await until_dealt(desk.world, desk.validator)
        yield desk


@pytest.fixture(scope="module")
def alone(dataset: Dataset) -> tuple[object, ...]:
    return bytes_of_a_leader_alone(dataset, MINERS)


def check(world: World, alone: tuple[object, ...]) -> None:
    state = world.log()
    assert state.head_node.shards == alone
    assert (state.rounds_committed, state.rounds_aborted) == (1, 0)
    assert liars(world) == set()
    assert verify_run(world.store, world.spec.run).merges == 1


def changed(word: Reduction, **changes: Any) -> Reduction:
    """The word with its first copy changed."""
    first, *rest = word.copies
    return dataclasses.replace(word, copies=(dataclasses.replace(first, **changes), *rest))


def many(word: Reduction, count: int) -> Reduction:
    """A word of so many copies, which the class itself would refuse to hold."""
    [first, *_] = word.copies
    copies = tuple(Copy(ShardId(0), number, first.mean, first.inputs_sha256) for number in range(count))
    made = dataclasses.replace(word)
    object.__setattr__(made, "copies", copies)
    return made


def test_each_wrong_word_has_its_refusal_and_the_round_commits_the_same(
    dataset: Dataset, alone: tuple[object, ...]
) -> None:
    async def go() -> World:
        async with dealt(dataset) as desk:
            assert all(len(view.duties) == 3 for view in desk.views.values())
            word, miner, other = desk.work().word, desk.miner, desk.world.miners[1]
            ref = word.copies[0].mean
            body = sign_record(REDUCTION, as_body(word), miner.signer).to_json()
            foreign = changed(word, mean=ObjectRef(Sha256("1" * 64), ref.size_bytes))
            tampered = json.loads(signed(word, miner))
            tampered["reduction"]["body"]["copies"][0]["mean"]["sha256"] = "2" * 64
            as_other_kind = sign_record("manifest", as_body(word), miner.signer).to_json()
            first, *_ = as_body(word)["copies"]
            twice = sign_record(REDUCTION, as_body(word) | {"copies": [first, first]}, miner.signer).to_json()
            none = sign_record(REDUCTION, as_body(word) | {"copies": []}, miner.signer).to_json()
            extra = sign_record(REDUCTION, as_body(word) | {"why": "so"}, miner.signer).to_json()
            cases: list[tuple[bytes, tuple[int, str]]] = [
                (b"", (400, "bad_message")),
                (b"{", (400, "bad_message")),
                (b"[]", (400, "bad_message")),
                (b"\xff\xfe", (400, "bad_message")),
                (b'{"reduction": 1}', (400, "bad_message")),
                (json.dumps({"reduction": body, "more": 1}).encode(), (400, "bad_message")),
                (b'{"reduction": {}}', (422, "bad_record")),
                (b'{"reduction": {"body": {"schema": NaN}, "signature": ""}}', (422, "bad_record")),
                (b"[" * 5000, (400, "bad_message")),
                (json.dumps({"reduction": tampered["reduction"]}).encode(), (401, "bad_signature")),
                (json.dumps({"reduction": as_other_kind}).encode(), (401, "bad_signature")),
                (json.dumps({"reduction": twice}).encode(), (400, "bad_reduction")),
                (json.dumps({"reduction": none}).encode(), (400, "bad_reduction")),
                (json.dumps({"reduction": extra}).encode(), (400, "bad_reduction")),
                (signed(many(word, MAX_COPIES + 1), miner), (400, "bad_reduction")),
                (signed(dataclasses.replace(word, run="another"), miner), (422, "wrong_run")),
                (signed(dataclasses.replace(word, schema=2), miner), (422, "unknown_schema")),
                (signed(dataclasses.replace(word, signer=other.signer.hotkey), other), (403, "wrong_hotkey")),
                (signed(dataclasses.replace(word, round=RoundId(1)), miner), (409, "round_closed")),
                (signed(dataclasses.replace(word, plan_sha256=Sha256("3" * 64)), miner), (409, "round_closed")),
                (signed(changed(word, shard=ShardId(1)), miner), (422, "not_your_duty")),
                (signed(changed(word, partition=200), miner), (422, "not_your_duty")),
                (signed(changed(word, mean=ObjectRef(ref.sha256, ref.size_bytes + 4)), miner), (422, "wrong_size")),
                (signed(changed(word, inputs_sha256=Sha256("4" * 64)), miner), (422, "wrong_inputs")),
            ]
            for sent, expected in cases:
                assert refused(await desk.post(sent)) == expected, sent[:200]
            await desk.keep_leading()
            assert stored(desk.world, "mean") == stored(desk.world, "reduction") == []
            # Nothing of a refused word was noted: the right one is still its first.
            assert len(accepted(await desk.tell(word)).uploads) == 3
            assert refused(await desk.tell(foreign)) == (409, "another_mean")
            await until_committed(desk.world, desk.validator, owners(desk.world))
            assert refused(await desk.tell(word)) == (409, "round_closed")
            return desk.world

    check(asyncio.run(go()), alone)


def as_body(word: Reduction) -> dict[str, Any]:
    body = to_json(word)
    assert isinstance(body, dict)
    return body


def test_a_duty_of_somebody_else_is_refused(dataset: Dataset) -> None:
    """Of two owners among three miners, somebody is without a duty for each partition."""

    async def go() -> None:
        async with dealt(dataset, ReduceSpec("butterfly", 3, 2, 0)) as desk:
            whose = {n: {duty.partition for duty in view.duties} for n, view in desk.views.items()}
            pairs = [(one, other) for one in whose for other in whose if whose[other] - whose[one]]
            assert pairs
            for one, other in pairs:
                posing = dataclasses.replace(desk.work(other).word, signer=desk.world.miners[one].signer.hotkey)
                assert refused(await desk.tell(posing, one)) == (422, "not_your_duty")
            assert stored(desk.world, "mean") == stored(desk.world, "reduction") == []

    asyncio.run(go())


def test_bodies_that_are_too_large_are_refused_before_anything_is_made_of_them(dataset: Dataset) -> None:
    async def go() -> None:
        async with dealt(dataset) as desk:
            word = desk.work().word
            most = signed(many(word, MAX_COPIES), desk.miner)
            assert len(most) < MAX_REDUCTION_BYTES, "a word of all copies fits"
            for size in (MAX_REDUCTION_REQUEST_BYTES + 1, MAX_REQUEST_BYTES + 1):
                body = signed(word, desk.miner)
                assert refused(await desk.post(body + b" " * (size - len(body)))) == (413, "too_large")
            body = signed(word, desk.miner)
            padded = body + b" " * (MAX_REDUCTION_REQUEST_BYTES - len(body))
            assert len(accepted(await desk.post(padded)).uploads) == 3

    asyncio.run(go())


def test_before_the_deal_and_at_a_leader_that_reduces_alone_there_is_nothing_to_hand_in(dataset: Dataset) -> None:
    async def go() -> None:
        async with dealt(dataset) as desk:
            word = desk.work().word
        leader_alone = ReduceSpec("leader", 3, 1, 0)
        for how, expected in ((EACH_ALL, (409, "round_closed")), (leader_alone, (422, "no_butterfly"))):
            async with served(dataset, how) as early:
                for _ in range(3):
                    await early.validator.driver.step()
                assert refused(await early.tell(word)) == expected
                assert stored(early.world, "mean") == stored(early.world, "reduction") == []

    asyncio.run(go())


def test_a_word_of_the_round_before_counts_for_nothing_in_the_next(dataset: Dataset) -> None:
    async def go() -> None:
        async with dealt(dataset, until=2) as desk:
            word = desk.work().word
            await until_committed(desk.world, desk.validator, owners(desk.world))
            words = stored(desk.world, "reduction")
            desk.views = await until_dealt(desk.world, desk.validator)
            assert refused(await desk.tell(word)) == (409, "round_closed")
            posing = dataclasses.replace(word, round=RoundId(1), plan_sha256=Sha256(desk.views[0].plan_sha256))
            assert refused(await desk.tell(posing)) == (422, "wrong_inputs")
            assert stored(desk.world, "reduction") == words
            await until_committed(desk.world, desk.validator, owners(desk.world), head=2)

    asyncio.run(go())


def test_duties_are_told_to_their_owners_over_the_same_door(dataset: Dataset) -> None:
    async def go() -> None:
        async with dealt(dataset) as desk:
            reply = parse(HeartbeatReply, (await desk.post(beat(seq=99), path="/v1/heartbeat")).content)
            assert reply.reduce is not None
            assert reply.reduce.duties == desk.views[0].duties

    asyncio.run(go())


# Floods.


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

    check(asyncio.run(go()), alone)


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

    check(asyncio.run(go()), alone)


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
