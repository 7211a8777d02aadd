"""One validator as a miner talks to it: signed requests, checked answers, typed errors.

Requests are signed with the validator's own time, carried forward on our monotonic clock; each attempt has a fresh
nonce, and nothing below this module repeats a request. An answer counts only with the validator's signature over it
and our nonce; whatever else speaks on that address is a passing fault, never an instruction.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import httpx

from common import timeouts
from common.auth import NONCE_HEADER, REPLY_SIGNATURE, check_reply, sign_request
from common.clock import Clock, ServerTime
from common.errors import Rejected, RemoteError, Retryable
from common.identity import KeypairSigner, SignedRecord
from common.store.multipart import Md5
from common.units import Hotkey, Sha256
from common.wire import (
    MAX_REPLY_BYTES,
    ComplaintReply,
    ComplaintRequest,
    CompleteReply,
    CompleteRequest,
    ErrorReply,
    Health,
    Heartbeat,
    HeartbeatReply,
    Message,
    ProbeAnswer,
    ProbeReply,
    ReductionReply,
    ReductionRequest,
    SubmissionReply,
    SubmissionRequest,
    parse,
)

M = TypeVar("M", bound=Message)

TIME_CODES = frozenset({"stale_request", "replayed_request"})
"""Refusals that a fresh reading of the validator's time cures."""


@dataclass(frozen=True)
class _Answer:
    status: int
    body: bytes
    signature: str


class ValidatorClient:
    """A long-lived connection to one validator. Every method may raise ``Retryable`` and ``Rejected``."""

    def __init__(
        self,
        base_url: str,
        server: Hotkey,
        signer: KeypairSigner,
        clock: Clock,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """``transport`` replaces the network."""
        self.server = server
        self.base_url = base_url
        self.time = ServerTime(clock)
        self._signer = signer
        self._clock = clock
        self._retired = False
        self._under_way = 0
        self._http = httpx.AsyncClient(
            base_url=base_url,
            transport=transport,
            timeout=httpx.Timeout(timeouts.CONTROL_READ_S, connect=timeouts.CONNECT_S),
            limits=httpx.Limits(max_connections=4, max_keepalive_connections=2),
            follow_redirects=False,
            trust_env=False,
        )

    async def health(self) -> Health:
        """Who serves here, and its time, which later requests are signed with."""
        return await self._health({})

    async def signed_health(self) -> Health:
        """The same, with the validator's signature over it and a nonce of ours: proved, and not just said."""
        return await self._health({NONCE_HEADER: str(self._clock.wall_ns())})

    async def _health(self, headers: dict[str, str]) -> Health:
        started_s = self._clock.monotonic_s()
        answer = await self._exchange("GET", "/v1/health", b"", headers)
        if answer.status != 200:
            raise Retryable(f"{self.base_url} answers {answer.status} to a question for its health")
        if headers and not self._is_genuine(answer, headers[NONCE_HEADER]):
            raise Retryable(f"{self.base_url} tells its health without {self.server}'s signature")
        health = self._parse_health(answer.body)
        if health.hotkey != self.server:
            raise Retryable(f"{self.base_url} is served by {health.hotkey}, not by {self.server}")
        self.time.observe(health.server_ns, self._clock.monotonic_s() - started_s)
        return health

    async def heartbeat(self, message: Heartbeat) -> HeartbeatReply:
        """Tell how it goes; hear what to do. Also a reading of the validator's time."""
        started_s = self._clock.monotonic_s()
        reply = await self._post("/v1/heartbeat", message, HeartbeatReply)
        self.time.observe(reply.server_ns, self._clock.monotonic_s() - started_s)
        return reply

    async def submit(self, manifest: SignedRecord, part_hashes: tuple[Md5, ...] = ()) -> SubmissionReply:
        """Announce a delta, with the hashes of its parts if it has several. The same manifest may be sent again and
        has the same effect."""
        message = SubmissionRequest(manifest=manifest.to_json(), parts=part_hashes)
        return await self._post("/v1/submissions", message, SubmissionReply)

    async def complete(self, round_id: int, shard: int, delta: Sha256) -> CompleteReply:
        """Say that the delta has been put, and hear whether it is as announced."""
        message = CompleteRequest(round=round_id, shard=shard, delta_sha256=delta)
        return await self._post("/v1/submissions/complete", message, CompleteReply)

    async def complain(self, manifest: SignedRecord, receipt: SignedRecord) -> ComplaintReply:
        """Show a receipt that a plan does not honour; whether that convicts the leader. May be sent again."""
        message = ComplaintRequest(manifest=manifest.to_json(), receipt=receipt.to_json())
        return await self._post("/v1/complaints", message, ComplaintReply)

    async def reduced(self, word: SignedRecord) -> ReductionReply:
        """Say which means are made; hear where to put those that are not there yet."""
        return await self._post("/v1/reductions", ReductionRequest(reduction=word.to_json()), ReductionReply)

    async def probed(self, answer: ProbeAnswer) -> ProbeReply:
        """Say that the transfer of a probe has been made, or can't be made now; hear whether it counts."""
        return await self._post("/v1/probes", answer, ProbeReply)

    async def retire(self) -> None:
        """Take no more requests, and hang up once those under way have ended. Idempotent."""
        self._retired = True
        if self._under_way == 0:
            await self._http.aclose()

    async def _post(self, path: str, message: Message, kind: type[M]) -> M:
        if not self.time.offset_known:
            await self.health()
        body = message.model_dump_json().encode()
        headers = sign_request(self._signer, "POST", path, body, self.server, self.time.wall_ns())
        answer = await self._exchange("POST", path, body, headers)
        nonce = headers[NONCE_HEADER]
        if not self._is_genuine(answer, nonce):
            raise Retryable(f"{self.base_url} answers {answer.status} without {self.server}'s signature")
        if answer.status != 200:
            raise self._error(answer)
        return parse(kind, answer.body, MAX_REPLY_BYTES)

    def _parse_health(self, body: bytes) -> Health:
        """This answer need not be signed, so that nonsense only means that somebody else is there."""
        try:
            return parse(Health, body, MAX_REPLY_BYTES)
        except Rejected as error:
            raise Retryable(f"{self.base_url} does not answer as a validator: {error.message}") from error

    def _is_genuine(self, answer: _Answer, nonce: str) -> bool:
        try:
            check_reply(self.server, nonce, answer.status, answer.body, answer.signature)
        except Rejected:
            return False
        return True

    def _error(self, answer: _Answer) -> RemoteError:
        """A signed refusal as an exception."""
        reply = parse(ErrorReply, answer.body, MAX_REPLY_BYTES)
        if reply.code in TIME_CODES:
            self.time.offset_known = False  # the next request asks for the time first
            return Retryable(f"{reply.code}: {reply.message}")
        if answer.status == 429 or answer.status >= 500:
            return Retryable(f"{reply.code}: {reply.message}", reply.retry_after_s)
        return Rejected(reply.code, reply.message)

    async def _exchange(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> _Answer:
        """One request, one answer of bounded size."""
        if self._retired:
            raise Retryable(f"{self.base_url} is no longer where the leader is called")
        self._under_way += 1
        try:
            return await self._send(method, path, body, headers)
        finally:
            self._under_way -= 1
            if self._retired:
                await self.retire()

    async def _send(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> _Answer:
        sent = {**headers, "accept-encoding": "identity"}
        if body:
            sent["content-type"] = "application/json"
        try:
            async with self._http.stream(method, path, content=body, headers=sent) as response:
                return _Answer(response.status_code, await _capped(response), response.headers.get(REPLY_SIGNATURE, ""))
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise Retryable(f"no answer from {self.base_url} ({type(error).__name__})") from error


async def _capped(response: httpx.Response) -> bytes:
    body = bytearray()
    async for block in response.aiter_raw():
        body += block
        if len(body) > MAX_REPLY_BYTES:
            raise Retryable(f"{response.url.host} answers with more than {MAX_REPLY_BYTES} bytes")
    return bytes(body)
