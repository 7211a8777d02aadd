"""The door for means over real HTTP: each wrong word has its own refusal and changes nothing."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from typing import Any

import pytest

from common.data.dataset import Dataset
from common.identity import sign_record
from common.records import ObjectRef
from common.reductions import MAX_COPIES, MAX_REDUCTION_BYTES, REDUCTION, Copy, Reduction
from common.spec import ReduceSpec
from common.units import RoundId, Sha256, ShardId
from common.wire import MAX_REQUEST_BYTES, HeartbeatReply, parse
from tests.validator.butterflies import (
    bytes_of_a_leader_alone,
    check_round,
    owners,
    stored,
    until_committed,
    until_dealt,
)
from tests.validator.reductiondesk import EACH_ALL, MINERS, accepted, as_body, dealt, refused, served, signed
from tests.validator.test_api import beat
from tests.validator.world import World
from validator.api.app import MAX_REDUCTION_REQUEST_BYTES


@pytest.fixture(scope="module")
def alone(dataset: Dataset) -> tuple[object, ...]:
    return bytes_of_a_leader_alone(dataset, MINERS)


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

    check_round(asyncio.run(go()), alone, set())


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
