"""Signed requests and answers, both ways, against an application that checks as a validator does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request, Response

from common.auth import NONCE_HEADER, REPLY_SIGNATURE, RequestVerifier, sign_reply
from common.clock import ManualClock
from common.errors import Rejected, Retryable
from common.identity import KeypairSigner
from common.wire import Counters, ErrorReply, Health, Heartbeat, HeartbeatReply, Message, Phase
from miner.client import ValidatorClient

SERVER = KeypairSigner.from_uri("//Alice")
MINER = KeypairSigner.from_uri("//Miner0")
STRANGER = KeypairSigner.from_uri("//Stranger")
HOUR_S = 3600


class Validator:
    """Verifies requests on its own clock and answers with what the test wants."""

    def __init__(self) -> None:
        self.clock = ManualClock(now_s=10 * HOUR_S)
        self.signer = SERVER
        self.refusal: tuple[int, ErrorReply] | None = None
        self.spoil: Callable[[bytes], bytes] = lambda body: body
        self.refused: list[str] = []
        self.callers: list[str] = []
        self.health_asked = 0
        self.app = FastAPI()
        self._verifier = RequestVerifier(SERVER.hotkey, self.clock.wall_ns())
        self.app.add_api_route("/v1/health", self.health, methods=["GET"])
        self.app.add_api_route("/v1/heartbeat", self.heartbeat, methods=["POST"])

    def restart(self) -> None:
        self._verifier = RequestVerifier(SERVER.hotkey, self.clock.wall_ns())

    async def health(self, request: Request) -> Response:
        self.health_asked += 1
        health = Health(
            run="r", spec_sha256="0" * 64, hotkey=self.signer.hotkey, server_ns=self.clock.wall_ns(), leading=True,
            version="0",
        )  # fmt: skip
        if NONCE_HEADER in request.headers:
            return self._reply(request, 200, health)
        return Response(health.model_dump_json(), media_type="application/json")

    async def heartbeat(self, request: Request) -> Response:
        try:
            body = await request.body()
            caller = self._verifier.verify(request.headers, body, "POST", request.url.path, self.clock.wall_ns())
        except Rejected as error:
            self.refused.append(error.code)
            return self._reply(request, 401, ErrorReply(code=error.code, message=error.message))
        self.callers.append(caller)
        if self.refusal:
            return self._reply(request, *self.refusal)
        return self._reply(request, 200, reply(self.clock.wall_ns()))

    def _reply(self, request: Request, status: int, message: Message) -> Response:
        body = message.model_dump_json().encode()
        signature = sign_reply(self.signer, request.headers[NONCE_HEADER], status, body)
        return Response(self.spoil(body), status, headers={REPLY_SIGNATURE: signature})


def reply(server_ns: int) -> HeartbeatReply:
    return HeartbeatReply(
        server_ns=server_ns, leader=SERVER.hotkey, instance="ab" * 8, term=1, next_seq=3, round=None, delivered=False,
        score=None,
    )  # fmt: skip


def beat(seq: int = 1) -> Heartbeat:
    return Heartbeat(
        session="cd" * 8, seq=seq, phase=Phase.TRAINING, round=None, revision=None, weights_sha256=None,
        round_tokens=0, round_steps=0, ahead_tokens=0, tokens_per_s=0.0, loss=None,
        counters=Counters(tokens=0, training_s=0.0, online_s=0.0), upload=None, note="",
    )  # fmt: skip


def client(validator: Validator, clock: ManualClock | None = None, **changes: Any) -> ValidatorClient:
    settings = {"server": SERVER.hotkey, "signer": MINER, **changes}
    transport = httpx.ASGITransport(validator.app)
    return ValidatorClient("http://validator", clock=clock or ManualClock(), transport=transport, **settings)


def answer_to(made: ValidatorClient, times: int = 1) -> HeartbeatReply:
    async def ask() -> HeartbeatReply:
        for seq in range(times - 1):
            await made.heartbeat(beat(seq))
        return await made.heartbeat(beat(times))

    return asyncio.run(ask())


def test_a_miner_whose_clock_is_hours_wrong_is_understood() -> None:
    validator = Validator()
    made = client(validator, ManualClock(now_s=-9 * HOUR_S))
    assert answer_to(made, times=3).next_seq == 3
    assert validator.callers == [MINER.hotkey] * 3
    assert validator.health_asked == 1


def test_health_can_be_asked_for_with_a_signature() -> None:
    validator = Validator()
    made = client(validator)
    assert asyncio.run(made.signed_health()).hotkey == SERVER.hotkey
    validator.spoil = lambda body: body.replace(b"true", b"null")
    with pytest.raises(Retryable, match="without"):
        asyncio.run(client(validator).signed_health())


def test_every_attempt_has_a_nonce_of_its_own() -> None:
    validator, clock = Validator(), ManualClock()  # a clock that stands still
    answer_to(client(validator, clock), times=20)
    assert validator.refused == []


def test_after_a_restart_of_the_validator_its_time_is_taken_again() -> None:
    validator = Validator()
    made = client(validator)
    answer_to(made)
    validator.clock.advance(HOUR_S)
    validator.restart()
    with pytest.raises(Retryable, match="stale_request"):
        answer_to(made)
    answer_to(made)
    assert validator.health_asked == 2


def test_a_stale_request_is_cured_by_asking_the_time() -> None:
    validator = Validator()
    made = client(validator)
    answer_to(made)
    validator.clock.advance(60)
    with pytest.raises(Retryable):
        answer_to(made)
    assert answer_to(made).term == 1


def test_an_answer_signed_by_somebody_else_is_no_answer() -> None:
    validator = Validator()
    made = client(validator)
    answer_to(made)
    validator.signer = STRANGER
    with pytest.raises(Retryable, match="signature"):
        answer_to(made)


def test_a_tampered_answer_is_no_answer() -> None:
    validator = Validator()
    validator.spoil = lambda body: body.replace(b'"next_seq":3', b'"next_seq":9')
    with pytest.raises(Retryable, match="signature"):
        answer_to(client(validator))


def test_an_answer_to_an_earlier_request_is_no_answer() -> None:
    validator = Validator()
    made = client(validator)
    replayed: list[tuple[bytes, str]] = []

    async def heartbeat(request: Request) -> Response:
        if not replayed:
            first = await validator.heartbeat(request)
            replayed.append((bytes(first.body), first.headers[REPLY_SIGNATURE]))
        body, signature = replayed[0]
        return Response(body, 200, headers={REPLY_SIGNATURE: signature})

    app = FastAPI()
    app.add_api_route("/v1/health", validator.health, methods=["GET"])
    app.add_api_route("/v1/heartbeat", heartbeat, methods=["POST"])
    made._http._transport = httpx.ASGITransport(app)
    answer_to(made)
    with pytest.raises(Retryable, match="signature"):
        answer_to(made)


def test_a_request_for_another_validator_is_refused_there() -> None:
    validator = Validator()
    made = client(validator, server=STRANGER.hotkey)
    with pytest.raises(Retryable, match="is served by"):
        answer_to(made)
    made.time.observe(validator.clock.wall_ns(), 0.0)
    with pytest.raises(Retryable):
        answer_to(made)
    assert validator.refused == ["wrong_receiver"]


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [(403, "not_member", Rejected), (409, "round_closed", Rejected), (429, "rate_limited", Retryable),
     (503, "starting", Retryable)],
)  # fmt: skip
def test_refusals_keep_their_type(status: int, code: str, kind: type[Exception]) -> None:
    validator = Validator()
    validator.refusal = (status, ErrorReply(code=code, message="because", retry_after_s=7.0))
    with pytest.raises(kind, match=f"{code}: because") as raised:
        answer_to(client(validator))
    if isinstance(raised.value, Rejected):
        assert raised.value.code == code
    else:
        assert raised.value.retry_after_s == 7.0  # type: ignore[attr-defined]


@pytest.mark.parametrize("status", [200, 302, 404, 502])
@pytest.mark.parametrize("body", [b"", b"<html>", b"x" * (2 << 20)])
def test_whatever_else_answers_is_a_passing_fault(status: int, body: bytes) -> None:
    async def other(request: httpx.Request) -> httpx.Response:
        return httpx.Response(status, stream=httpx.ByteStream(body), headers={"location": "http://elsewhere/"})

    made = ValidatorClient("http://v", SERVER.hotkey, MINER, ManualClock(), httpx.MockTransport(other))
    with pytest.raises(Retryable):
        asyncio.run(made.health())
    made.time.observe(10**18, 0.0)
    with pytest.raises(Retryable):
        answer_to(made)


def test_no_connection_is_a_passing_fault() -> None:
    async def nobody(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    made = ValidatorClient("http://v", SERVER.hotkey, MINER, ManualClock(), httpx.MockTransport(nobody))
    with pytest.raises(Retryable, match="no answer"):
        answer_to(made)


def test_a_client_that_is_let_go_ends_what_is_under_way_and_takes_nothing_new() -> None:
    validator = Validator()
    asked, answer = asyncio.Event(), asyncio.Event()

    class Slow(httpx.AsyncBaseTransport):
        closed = False

        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            asked.set()
            await answer.wait()
            assert not self.closed
            return await httpx.ASGITransport(validator.app).handle_async_request(request)

        async def aclose(self) -> None:
            self.closed = True

    async def run() -> None:
        transport = Slow()
        made = ValidatorClient("http://v", SERVER.hotkey, MINER, ManualClock(), transport)
        under_way = asyncio.create_task(made.health())
        await asked.wait()
        await made.retire()
        assert not transport.closed
        with pytest.raises(Retryable, match="no longer"):
            await made.health()
        answer.set()
        assert (await under_way).hotkey == SERVER.hotkey
        assert transport.closed

    asyncio.run(run())
