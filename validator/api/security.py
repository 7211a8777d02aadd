"""What stands between a stranger and the service, cheapest check first.

Order: limit of the address → announced length and a counted stream (before anything is hashed) → seat of the claimed
hotkey in the metagraph → signature, receiver, freshness, replay → limit of the hotkey, which comes after the proof so
that nobody can use up another's → so many of the hotkey as may wait for an answer. Only what passed all of it is
parsed. Open routes have the limit of the address.
Every answer to a request that carries a nonce is signed over (nonce, status, body), refusals too.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from bittensor import http_auth
from fastapi import Request, Response
from starlette.requests import ClientDisconnect

from common.auth import REPLY_SIGNATURE, RequestVerifier, is_nonce, sign_reply
from common.clock import Clock
from common.errors import Rejected, RemoteError, Retryable
from common.identity import KeypairSigner
from common.timeouts import CONTROL_READ_S
from common.units import Hotkey
from common.wire import MAX_REQUEST_BYTES, ErrorReply
from validator.api.door import source_of
from validator.api.limits import MOST_AT_ONCE, PER_ADDRESS, PER_HOTKEY, RateLimiter, Turns
from validator.membership import Membership, Seat

STATUS = {
    "malformed_auth": 401,
    "wrong_receiver": 401,
    "stale_request": 401,
    "replayed_request": 401,
    "bad_signature": 401,
    "not_member": 403,
    "wrong_hotkey": 403,
    "wrong_key": 403,
    "not_found": 404,
    "object_missing": 404,
    "method_not_allowed": 405,
    "not_leader": 409,
    "round_closed": 409,
    "wrong_round": 409,
    "own_plan": 409,
    "round_too_old": 409,
    "wrong_base": 409,
    "already_submitted": 409,
    "already_announced": 409,
    "superseded": 409,
    "too_slow": 408,
    "too_large": 413,
    "bad_message": 400,
    "bad_manifest": 400,
    "bad_receipt": 400,
    "bad_json": 400,
    "bad_reduction": 400,
    "another_mean": 409,
    "not_asked": 409,
    "rate_limited": 429,
    "too_many_submissions": 429,
    "too_many_waiting": 429,
}
OTHER_STATUS = 422
AWAY_STATUS = 503
AGAIN_S = 2.0
"""After which who has too many requests waiting may ask again."""


class RateLimited(Rejected):
    """Too many requests."""

    def __init__(self, whose: str, retry_after_s: float) -> None:
        super().__init__("rate_limited", f"too many requests from this {whose}; wait {retry_after_s:.1f} s")
        self.retry_after_s = retry_after_s


class TooManyWaiting(Rejected):
    """As many requests of a hotkey are being answered as may be."""

    def __init__(self, path: str) -> None:
        super().__init__(
            "too_many_waiting",
            f"{MOST_AT_ONCE} requests of this hotkey to {path} are being answered already; wait for an answer, "
            f"and ask again in {AGAIN_S:.1f} s",
        )
        self.retry_after_s = AGAIN_S


@dataclass(frozen=True)
class Caller:
    """Who sent a request that was proved to be theirs, and its body."""

    seat: Seat
    body: bytes
    host: str = ""
    """Address that the request came from; empty when there is none."""

    @property
    def hotkey(self) -> Hotkey:
        return self.seat.hotkey


class Gatekeeper:
    """The line of defence of one process."""

    def __init__(self, signer: KeypairSigner, membership: Membership, clock: Clock) -> None:
        self._signer = signer
        self._membership = membership
        self._clock = clock
        self._verifier = RequestVerifier(signer.hotkey, clock.wall_ns())
        self._addresses = RateLimiter(PER_ADDRESS)
        self._hotkeys = RateLimiter(PER_HOTKEY)
        self._turns = Turns()

    async def admit(self, request: Request) -> Caller:
        """The authenticated caller. Raises ``Rejected``, each refusal with a code of its own, and ``Retryable``."""
        self.admit_open(request)
        body = await read_body(request)
        claimed = Hotkey(request.headers.get(http_auth.HEADER_HOTKEY, "")[:64])
        if not claimed:
            raise Rejected("malformed_auth", f"the header {http_auth.HEADER_HOTKEY} is missing")
        seat = await self._membership.seat(claimed)
        if seat is None:
            raise Rejected("not_member", "this hotkey has no seat on the subnet; register it first")
        target = _target(request)
        hotkey = self._verifier.verify(request.headers, body, request.method, target, self._clock.wall_ns())
        if hotkey != claimed:
            raise Rejected("wrong_hotkey", "the request is signed by another hotkey than it claims")
        self._limit(self._hotkeys, "hotkey", hotkey)
        return Caller(seat, body, request.client.host if request.client else "")

    @contextmanager
    def answering(self, request: Request, caller: Caller) -> Iterator[None]:
        """While a request is being answered. Raises ``TooManyWaiting``."""
        path = path_of(request)
        with self._turns.taken(caller.hotkey, path) as free:
            if not free:
                raise TooManyWaiting(path)
            yield

    def admit_open(self, request: Request) -> None:
        """Raise ``RateLimited`` when the address of an unsigned request sends too many."""
        self._limit(self._addresses, "address", source_of(request.client.host if request.client else ""))

    def sign(self, request: Request, response: Response) -> Response:
        """The same response with our signature, when the request has a nonce to bind it to."""
        nonce = request.headers.get(http_auth.HEADER_NONCE, "")
        if is_nonce(nonce):
            signature = sign_reply(self._signer, nonce, response.status_code, bytes(response.body))
            response.headers[REPLY_SIGNATURE] = signature
        return response

    def refuse(self, request: Request, error: RemoteError) -> Response:
        """The answer that an error becomes."""
        return self.sign(request, error_response(error))

    def _limit(self, limiter: RateLimiter, whose: str, key: str) -> None:
        wait_s = limiter.take(key, self._clock.monotonic_s())
        if wait_s > 0:
            raise RateLimited(whose, wait_s)


async def read_body(request: Request, max_bytes: int = MAX_REQUEST_BYTES) -> bytes:
    """The body, never more than ``max_bytes`` of it. Raises ``Rejected`` (``too_large``, ``too_slow``, ``cut_off``)."""
    announced = request.headers.get("content-length", "0")
    if not announced.isascii() or not announced.isdigit() or len(announced) > 12 or int(announced) > max_bytes:
        raise Rejected("too_large", f"a request has at most {max_bytes} bytes")
    body = bytearray()
    try:
        async with asyncio.timeout(CONTROL_READ_S):
            async for piece in request.stream():
                body += piece
                if len(body) > max_bytes:
                    raise Rejected("too_large", f"a request has at most {max_bytes} bytes")
    except TimeoutError:
        raise Rejected("too_slow", f"the body did not arrive within {CONTROL_READ_S:g} s") from None
    except ClientDisconnect:  # a line that breaks is everyday trouble of the sender, who will ask again
        raise Rejected("cut_off", "the connection ended before the request was complete") from None
    return bytes(body)


def error_response(error: RemoteError) -> Response:
    """``ErrorReply`` with the status that belongs to the code."""
    retry_after_s = getattr(error, "retry_after_s", None)
    if isinstance(error, Rejected):
        code, message, status = error.code, error.message, STATUS.get(error.code, OTHER_STATUS)
    else:
        code, message = ("away" if isinstance(error, Retryable) else "failed"), str(error)
        status = AWAY_STATUS
    reply = ErrorReply(code=code[:64], message=message[:1000], retry_after_s=retry_after_s)
    headers = {} if retry_after_s is None else {"retry-after": str(max(1, math.ceil(retry_after_s)))}
    return Response(reply.model_dump_json().encode(), status, headers, media_type="application/json")


def path_of(request: Request) -> str:
    """The path by which a request was routed. ``request.url`` is made of its Host header too, which is the sender's."""
    path: str = request.scope["path"]
    return path


def _target(request: Request) -> str:
    """The request target in its wire form, which is what was signed."""
    path = request.scope.get("raw_path") or request.scope["path"].encode()
    query = request.scope.get("query_string", b"")
    text: str = path.decode("latin-1")
    return f"{text}?{query.decode('latin-1')}" if query else text
