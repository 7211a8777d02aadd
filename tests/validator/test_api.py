"""The HTTP service against strangers and mistakes: each refused with its own typed code, every answer signed."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest
from fastapi import Request
from hypothesis import given, settings
from hypothesis import strategies as st

from common.auth import NONCE_HEADER, REPLY_SIGNATURE, check_reply, sign_request
from common.data.dataset import Dataset
from common.errors import Rejected
from common.identity import KeypairSigner
from common.records import Manifest, SampleRange, sign_manifest
from common.units import Hotkey, Revision, RoundId, Sha256
from common.wire import MAX_REQUEST_BYTES, CompleteReply, ErrorReply, SubmissionReply, UploadTarget, parse
from tests.support.specs import VALIDATOR
from tests.validator.world import Miner, World
from validator.api.limits import MOST_AT_ONCE, PER_ADDRESS
from validator.api.security import Caller, Gatekeeper
from validator.process import Validator
from validator.submissions import Submissions

BEAT = {
    "session": "ab" * 8,
    "seq": 1,
    "phase": "training",
    "round": 0,
    "revision": 0,
    "weights_sha256": None,
    "round_tokens": 32,
    "round_steps": 1,
    "ahead_tokens": 0,
    "tokens_per_s": 5.0,
    "loss": None,
    "counters": {"tokens": 32, "training_s": 1.0, "online_s": 2.0},
    "upload": None,
    "note": "",
}


class Desk:
    """A validator with an open round, and a client that speaks to it over ASGI."""

    def __init__(self, dataset: Dataset) -> None:
        self.world = World(dataset)

    async def open(self) -> None:
        await self.world.begin(2)
        self.validator: Validator = self.world.validator()
        for _ in range(3):
            await self.validator.driver.step()
        transport = httpx.ASGITransport(app=self.validator.app, client=("127.0.0.9", 999))
        self.http = httpx.AsyncClient(transport=transport, base_url="http://validator")

    @property
    def miner(self) -> Miner:
        return self.world.miners[0]

    async def post(
        self,
        path: str,
        body: bytes,
        signer: KeypairSigner | None = None,
        receiver: Hotkey = VALIDATOR.hotkey,
        sent: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> httpx.Response:
        """Sign ``body`` and send ``sent`` (the same if not given). The answer's signature is checked."""
        self.world.clock.advance(0.001)
        signed = headers or self.headers(path, body, signer, receiver)
        response = await self.http.post(path, content=body if sent is None else sent, headers=signed)
        nonce = signed["X-Bittensor-Nonce"]
        check_reply(VALIDATOR.hotkey, nonce, response.status_code, response.content, response.headers[REPLY_SIGNATURE])
        return response

    def headers(
        self, path: str, body: bytes, signer: KeypairSigner | None = None, receiver: Hotkey = VALIDATOR.hotkey
    ) -> dict[str, str]:
        return sign_request(signer or self.miner.signer, "POST", path, body, receiver, self.world.clock.wall_ns())


def with_desk(dataset: Dataset, act: Callable[[Desk], Awaitable[None]]) -> None:
    async def go() -> None:
        desk = Desk(dataset)
        await desk.open()
        await act(desk)
        await desk.http.aclose()

    asyncio.run(go())


def refused(response: httpx.Response, status: int, code: str) -> ErrorReply:
    reply = parse(ErrorReply, response.content)
    assert (response.status_code, reply.code) == (status, code), reply.message
    return reply


def beat(**changes: Any) -> bytes:
    return json.dumps({**BEAT, **changes}).encode()


def test_a_member_is_heard_and_everybody_may_ask_for_health_and_status(dataset: Dataset) -> None:
    async def act(desk: Desk) -> None:
        response = await desk.post("/v1/heartbeat", beat())
        assert response.status_code == 200
        assert response.json()["round"]["instruction"] == "train"
        assert response.json()["leader"] == VALIDATOR.hotkey
        health = (await desk.http.get("/v1/health")).json()
        assert (health["leading"], health["hotkey"]) == (True, VALIDATOR.hotkey)
        signed = await desk.http.get("/v1/health", headers={NONCE_HEADER: "17"})
        check_reply(VALIDATOR.hotkey, "17", 200, signed.content, signed.headers[REPLY_SIGNATURE])
        status = (await desk.http.get("/v1/status")).json()
        assert status["miners"][0]["hotkey"] == desk.miner.signer.hotkey
        assert (await desk.http.get("/docs")).status_code == 404
        assert (await desk.http.get("/v1/heartbeat")).status_code == 405

    with_desk(dataset, act)


def test_strangers_replays_tampering_and_wrong_receivers_each_have_their_code(dataset: Dataset) -> None:
    async def act(desk: Desk) -> None:
        stranger = KeypairSigner.from_uri("//Stranger")
        refused(await desk.post("/v1/heartbeat", beat(), signer=stranger), 403, "not_member")
        headers = desk.headers("/v1/heartbeat", beat())
        assert (await desk.post("/v1/heartbeat", beat(), headers=headers)).status_code == 200
        refused(await desk.post("/v1/heartbeat", beat(), headers=headers), 401, "replayed_request")
        refused(await desk.post("/v1/heartbeat", beat(), sent=beat(seq=2)), 401, "bad_signature")
        refused(await desk.post("/v1/heartbeat", beat(), receiver=stranger.hotkey), 401, "wrong_receiver")
        other_path = desk.headers("/v1/submissions", beat())
        refused(await desk.post("/v1/heartbeat", beat(), headers=other_path), 401, "bad_signature")
        posing = desk.headers("/v1/heartbeat", beat(), signer=stranger)
        posing["X-Bittensor-Hotkey"] = desk.miner.signer.hotkey
        refused(await desk.post("/v1/heartbeat", beat(), headers=posing), 401, "bad_signature")
        late = desk.headers("/v1/heartbeat", beat())
        desk.world.clock.advance(11.0)
        refused(await desk.post("/v1/heartbeat", beat(), headers=late), 401, "stale_request")

    with_desk(dataset, act)


def test_a_request_from_before_the_server_started_is_stale(dataset: Dataset) -> None:
    async def act(desk: Desk) -> None:
        headers = desk.headers("/v1/heartbeat", beat())
        desk.world.clock.advance(1.0)
        desk.validator = desk.world.validator()
        desk.http = httpx.AsyncClient(
            transport=httpx.ASGITransport(app=desk.validator.app), base_url="http://validator"
        )
        refused(await desk.post("/v1/heartbeat", beat(), headers=headers), 401, "stale_request")

    with_desk(dataset, act)


def test_headers_that_are_missing_or_malformed_are_named(dataset: Dataset) -> None:
    async def act(desk: Desk) -> None:
        bare = await desk.http.post("/v1/heartbeat", content=beat())
        refused(bare, 401, "malformed_auth")
        assert REPLY_SIGNATURE not in bare.headers
        broken = desk.headers("/v1/heartbeat", beat())
        broken["X-Bittensor-Signature"] = "zz"
        refused(await desk.post("/v1/heartbeat", beat(), headers=broken), 401, "malformed_auth")
        crypto = desk.headers("/v1/heartbeat", beat()) | {"X-Bittensor-Crypto": "ed25519"}
        refused(await desk.post("/v1/heartbeat", beat(), headers=crypto), 401, "malformed_auth")

    with_desk(dataset, act)


def test_two_hotkey_headers_name_nobody(dataset: Dataset) -> None:
    async def act(desk: Desk) -> None:
        posing = desk.headers("/v1/heartbeat", beat())
        for first in (desk.miner.signer.hotkey, desk.world.miners[1].signer.hotkey):
            desk.world.clock.advance(0.001)
            pairs = [("X-Bittensor-Hotkey", str(first)), *posing.items()]
            reply = await desk.http.post("/v1/heartbeat", content=beat(), headers=pairs)
            refused(reply, 401, "malformed_auth")

    with_desk(dataset, act)


def test_open_routes_have_the_limit_of_the_address(dataset: Dataset) -> None:
    async def act(desk: Desk) -> None:
        for path in ("/v1/health", "/v1/status", "/v1/findings"):
            codes = [(await desk.http.get(path)).status_code for _ in range(int(PER_ADDRESS.burst) + 2)]
            assert codes[0] == 200
            assert codes[-1] == 429
            desk.world.clock.advance(60.0)

    with_desk(dataset, act)


@pytest.mark.parametrize("host", [b"a/x?", b"b/y#", b"["])
def test_what_waits_is_counted_by_its_route_whatever_else_its_sender_writes(dataset: Dataset, host: bytes) -> None:
    async def act(desk: Desk) -> None:
        keeper = Gatekeeper(VALIDATOR, desk.validator.board.membership, desk.world.clock)
        caller = Caller(desk.world.seat(desk.miner.signer), b"")
        scope = {"type": "http", "method": "POST", "path": "/v1/reductions", "headers": []}
        odd = scope | {"headers": [(b"host", host)], "query_string": b"\xff"}
        with ExitStack() as waiting:
            for _ in range(MOST_AT_ONCE):
                waiting.enter_context(keeper.answering(Request(odd), caller))
            with pytest.raises(Rejected, match="/v1/reductions"):
                waiting.enter_context(keeper.answering(Request(scope), caller))

    with_desk(dataset, act)


def test_who_has_a_whole_ipv6_site_has_the_limit_of_one_address(dataset: Dataset) -> None:
    async def act(desk: Desk) -> None:
        async def codes(hosts: list[str]) -> set[int]:
            found = set()
            for host in hosts:
                transport = httpx.ASGITransport(app=desk.validator.app, client=(host, 999))
                async with httpx.AsyncClient(transport=transport, base_url="http://validator") as http:
                    found.add((await http.get("/v1/health")).status_code)
            return found

        count = int(PER_ADDRESS.burst)
        assert await codes([f"2001:db8::{number:x}" for number in range(count)]) == {200}
        assert await codes(["2001:db8::ffff:ffff"]) == {429}
        assert await codes(["2001:db8:0:1::1", "192.0.2.1"]) == {200}
        assert await codes(["192.0.2.1", "::ffff:192.0.2.1"] * (count // 2 - 1)) == {200}
        assert await codes(["192.0.2.1", "::ffff:192.0.2.1"]) == {200, 429}

    with_desk(dataset, act)


def test_a_body_too_long_is_refused_before_it_is_hashed_however_it_comes(dataset: Dataset) -> None:
    async def act(desk: Desk) -> None:
        long = b"x" * (MAX_REQUEST_BYTES + 1)
        headers = desk.headers("/v1/heartbeat", b"")
        refused(await desk.post("/v1/heartbeat", b"", sent=long, headers=headers), 413, "too_large")

        async def pieces() -> Any:
            for _ in range(9):
                yield b"x" * (MAX_REQUEST_BYTES // 8)

        streamed = await desk.http.post("/v1/heartbeat", content=pieces(), headers=headers)
        refused(streamed, 413, "too_large")

    with_desk(dataset, act)


def test_messages_that_are_no_messages(dataset: Dataset) -> None:
    async def act(desk: Desk) -> None:
        for body in (b"", b"[]", b"{", beat(extra=1), beat(seq=-1), beat(note="x" * 301), beat(tokens_per_s="fast")):
            refused(await desk.post("/v1/heartbeat", body), 400, "bad_message")

    with_desk(dataset, act)


def test_too_many_requests_from_one_hotkey_are_told_when_to_come_back(dataset: Dataset) -> None:
    async def act(desk: Desk) -> None:
        last = None
        for number in range(60):
            last = await desk.post("/v1/heartbeat", beat(seq=number))
            if last.status_code == 429:
                break
        assert last is not None
        assert (refused(last, 429, "rate_limited").retry_after_s or 0) > 0

    with_desk(dataset, act)


def signed(desk: Desk, manifest: Manifest, signer: KeypairSigner | None = None) -> bytes:
    record = sign_manifest(manifest, signer or desk.miner.signer)
    return json.dumps({"manifest": record.to_json()}).encode()


def part(start: int, count: int) -> SampleRange:
    return SampleRange(RoundId(0), Revision(0), start, count)


def test_a_submission_is_receipted_uploaded_and_checked(dataset: Dataset) -> None:
    async def act(desk: Desk) -> None:
        manifest, body = desk.miner.make(desk.world.log())
        first = parse(SubmissionReply, (await desk.post("/v1/submissions", signed(desk, manifest))).content)
        assert isinstance(first.upload, UploadTarget)
        again = parse(SubmissionReply, (await desk.post("/v1/submissions", signed(desk, manifest))).content)
        assert again.receipt["body"] == first.receipt["body"]
        done = json.dumps({"round": 0, "shard": 0, "delta_sha256": manifest.delta.sha256}).encode()
        early = parse(CompleteReply, (await desk.post("/v1/submissions/complete", done)).content)
        assert (early.accepted, early.code) == (False, "not_uploaded")
        store = desk.world.store
        for wrong, code in (
            (body + b"x", "size_mismatch"),
            (body[:-1], "size_mismatch"),
            (bytes(len(body)), "checksum_mismatch"),
        ):
            with pytest.raises(Rejected) as caught:
                store.redeem_put(first.upload.url, first.upload.headers, wrong)
            assert caught.value.code == code
        store.redeem_put(first.upload.url, first.upload.headers, body)
        for _ in range(2):
            reply = parse(CompleteReply, (await desk.post("/v1/submissions/complete", done)).content)
            assert reply.accepted
        with pytest.raises(Rejected):
            store.redeem_put(first.upload.url, first.upload.headers, bytes(len(body)))
        third = parse(SubmissionReply, (await desk.post("/v1/submissions", signed(desk, manifest))).content)
        assert third.upload is None

    with_desk(dataset, act)


def test_manifests_that_do_not_fit_are_refused_each_with_its_code(dataset: Dataset) -> None:
    async def act(desk: Desk) -> None:
        manifest, _ = desk.miner.make(desk.world.log())
        other = desk.world.miners[1]
        theirs, _ = other.make(desk.world.log())

        def changed(**changes: Any) -> Manifest:
            made = dataclasses.replace(manifest, **changes)
            return dataclasses.replace(made, key=made.expected_key())

        cases = [
            (signed(desk, dataclasses.replace(manifest, key=theirs.key)), 403, "wrong_key"),
            (signed(desk, theirs, other.signer), 403, "wrong_hotkey"),
            (signed(desk, changed(round=RoundId(5))), 409, "wrong_round"),
            (signed(desk, changed(base_sha256=Sha256("1" * 64))), 409, "wrong_base"),
            (signed(desk, changed(base_revision=1)), 409, "wrong_base"),
            (signed(desk, changed(shard=3)), 422, "wrong_shard"),
            (signed(desk, changed(delta=dataclasses.replace(manifest.delta, size_bytes=7))), 422, "wrong_size"),
            (signed(desk, changed(tokens=10**9)), 400, "bad_manifest"),
            (signed(desk, changed(samples=(part(0, 4), part(2, 4)))), 422, "bad_samples"),
        ]
        for body, status, code in cases:
            refused(await desk.post("/v1/submissions", body), status, code)
        tampered = json.loads(signed(desk, manifest))
        tampered["manifest"]["body"]["tokens"] += 1
        refused(await desk.post("/v1/submissions", json.dumps(tampered).encode()), 401, "bad_signature")
        tampered["manifest"]["body"]["tokens"] = 1.5
        refused(await desk.post("/v1/submissions", json.dumps(tampered).encode()), 422, "bad_record")
        unknown = json.dumps({"round": 0, "shard": 0, "delta_sha256": "2" * 64}).encode()
        refused(await desk.post("/v1/submissions/complete", unknown), 422, "not_announced")
        stale = json.dumps({"round": 9, "shard": 0, "delta_sha256": "2" * 64}).encode()
        refused(await desk.post("/v1/submissions/complete", stale), 409, "wrong_round")

    with_desk(dataset, act)


def test_after_a_complete_upload_another_manifest_is_refused_and_a_follower_takes_none(dataset: Dataset) -> None:
    async def act(desk: Desk) -> None:
        await desk.miner.deliver(desk.validator)
        manifest, _ = desk.miner.make(desk.world.log())
        other = dataclasses.replace(manifest, trace_root=Sha256("3" * 64))
        refused(await desk.post("/v1/submissions", signed(desk, other)), 409, "already_submitted")
        desk.validator.board.leadership.leading = False
        refused(await desk.post("/v1/submissions", signed(desk, manifest)), 409, "not_leader")

    with_desk(dataset, act)


def test_a_delta_has_one_manifest_also_while_it_is_checked(dataset: Dataset) -> None:
    async def act(desk: Desk) -> None:
        manifest, body = desk.miner.make(desk.world.log())
        other = dataclasses.replace(manifest, trace_root=Sha256("3" * 64))
        first = parse(SubmissionReply, (await desk.post("/v1/submissions", signed(desk, manifest))).content)
        refused(await desk.post("/v1/submissions", signed(desk, other)), 409, "already_announced")
        assert isinstance(first.upload, UploadTarget)
        desk.world.store.redeem_put(first.upload.url, first.upload.headers, body)
        done = json.dumps({"round": 0, "shard": 0, "delta_sha256": manifest.delta.sha256}).encode()
        checked, late = await asyncio.gather(
            desk.post("/v1/submissions/complete", done), desk.post("/v1/submissions", signed(desk, other))
        )
        assert parse(CompleteReply, checked.content).accepted
        assert late.status_code == 409

    with_desk(dataset, act)


@pytest.mark.parametrize("replies_lost", [False, True])
def test_the_manifest_that_lies_in_the_bucket_is_the_one_of_the_plan(dataset: Dataset, replies_lost: bool) -> None:
    """Left there by a leader that was killed in the middle of the check, before anybody was told."""

    async def act(desk: Desk) -> None:
        store, round_ = desk.world.store, desk.validator.board.round
        assert round_ is not None
        manifest, body = desk.miner.make(desk.world.log())
        store.put(manifest.key, body)
        key = manifest.key.removesuffix(".delta") + ".json"
        if replies_lost:
            store.lose_next_reply(key_part=key)
        assert (await desk.post("/v1/submissions", signed(desk, manifest))).status_code == 200
        before = store.get(key, max_bytes=1 << 20).body
        round_.submissions = Submissions(round_.state.round, round_.state.base_revision)
        other = dataclasses.replace(manifest, trace_root=Sha256("3" * 64))
        assert (await desk.post("/v1/submissions", signed(desk, other))).status_code == 200
        [standing] = round_.submissions.for_plan()
        assert standing.submission is not None
        assert standing.submission.stored.encode() == before
        assert store.get(key, max_bytes=1 << 20).body == before

    with_desk(dataset, act)


@pytest.fixture(scope="module")
def fuzzed(dataset: Dataset) -> Iterator[tuple[Desk, asyncio.AbstractEventLoop]]:
    loop = asyncio.new_event_loop()
    desk = Desk(dataset)
    loop.run_until_complete(desk.open())
    yield desk, loop
    loop.run_until_complete(desk.http.aclose())
    loop.close()


json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=10,
)


@settings(max_examples=60, deadline=None)
@given(body=st.binary(max_size=200) | json_values.map(lambda value: json.dumps({"manifest": value}).encode()))
def test_whatever_a_member_sends_the_answer_is_typed(
    fuzzed: tuple[Desk, asyncio.AbstractEventLoop], body: bytes
) -> None:
    desk, loop = fuzzed
    for path in ("/v1/heartbeat", "/v1/submissions", "/v1/submissions/complete"):
        desk.world.clock.advance(1.0)
        response = loop.run_until_complete(desk.post(path, body))
        assert 400 <= response.status_code < 500
        assert parse(ErrorReply, response.content).code
