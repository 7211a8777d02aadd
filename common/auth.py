"""Signed HTTP: btauth/1 requests bound to their receiver, and answers signed by it.

The client signs with the server's time carried on its own monotonic clock; the server refuses nonces from before its
own start, since its memory of seen nonces starts there. Source: the signed-requests specification of bittensor 11.
Answers carry a signature over (request nonce, status, body hash), so that nobody on the path can instruct a miner.
"""

from __future__ import annotations

from collections.abc import Mapping

from bittensor import http_auth

from common.errors import Rejected
from common.identity import SIGNATURE_DIGITS, KeypairSigner, Signer, verify
from common.timeouts import NONCE_MAX_AGE_S, NONCE_RETENTION_S, NONCE_SKEW_S
from common.units import Hotkey, is_hex, sha256_hex

REPLY_SIGNATURE = "X-Brigade-Signature"
HOTKEY_HEADER, NONCE_HEADER = http_auth.HEADER_HOTKEY, http_auth.HEADER_NONCE
MAX_NONCE_DIGITS = 20
"""Of nanoseconds since the epoch: enough for the next thousand years."""
AUTH_HEADERS = "x-bittensor-"

_CODES: dict[type[http_auth.AuthError], str] = {
    http_auth.MalformedAuth: "malformed_auth",
    http_auth.WrongReceiver: "wrong_receiver",
    http_auth.StaleRequest: "stale_request",
    http_auth.ReplayedRequest: "replayed_request",
    http_auth.BadSignature: "bad_signature",
}


def sign_request(
    signer: KeypairSigner, method: str, target: str, body: bytes, receiver: Hotkey, nonce_ns: int
) -> dict[str, str]:
    """Headers that prove who sent exactly this request to whom. ``target`` is the path with its query, as sent."""
    return http_auth.sign(
        signer.keypair, method=method, path=target, body=body, receiver_ss58=receiver, nonce_ns=nonce_ns
    )


class RequestVerifier:
    """The server's side: verifies requests to one hotkey within one process's life."""

    def __init__(self, own_hotkey: Hotkey, started_ns: int) -> None:
        self._own_hotkey = own_hotkey
        self._started_ns = started_ns
        self._nonces = http_auth.InMemoryNonceStore(retention=NONCE_RETENTION_S)

    def verify(self, headers: Mapping[str, str], body: bytes, method: str, target: str, now_ns: int) -> Hotkey:
        """The authenticated sender. Raises ``Rejected`` with a code of its own for each way to fail."""
        lowered = _single(headers)
        if lowered.get(http_auth.HEADER_CRYPTO.lower(), "sr25519") != "sr25519":
            raise Rejected("malformed_auth", "only sr25519 hotkeys may call")
        nonce = lowered.get(http_auth.HEADER_NONCE.lower(), "")
        if not is_nonce(nonce):
            raise Rejected("malformed_auth", f"{http_auth.HEADER_NONCE} is 1 to {MAX_NONCE_DIGITS} decimal digits")
        if int(nonce) < self._started_ns:
            raise Rejected("stale_request", "signed before this server started; take its time from /v1/health again")
        try:
            caller = http_auth.verify(
                lowered,
                body,
                method=method,
                path=target,
                self_hotkey_ss58=self._own_hotkey,
                max_age=NONCE_MAX_AGE_S,
                allowed_skew=NONCE_SKEW_S,
                nonce_store=self._nonces,
                now_ns=now_ns,
            )
        except http_auth.AuthError as error:
            raise Rejected(_CODES.get(type(error), "malformed_auth"), str(error)) from None
        return Hotkey(caller.hotkey_ss58)


def is_nonce(text: str) -> bool:
    """Whether a nonce header is plain decimal digits: ``int`` would take signs, spaces, underscores, other digits."""
    return 1 <= len(text) <= MAX_NONCE_DIGITS and text.isascii() and text.isdigit()


def _single(headers: Mapping[str, str]) -> dict[str, str]:
    """Headers by lowercase name. Of a repeated one two readers may take different values, so it is refused."""
    found: dict[str, str] = {}
    for key, value in headers.items():
        name = key.lower()
        if name in found and name.startswith(AUTH_HEADERS):
            raise Rejected("malformed_auth", f"the header {name} appears more than once")
        found[name] = value
    return found


def sign_reply(signer: Signer, request_nonce: str, status: int, body: bytes) -> str:
    """The value of the answer's ``X-Brigade-Signature`` header."""
    return signer.sign(_reply_message(request_nonce, status, body)).hex()


def check_reply(server: Hotkey, request_nonce: str, status: int, body: bytes, signature: str) -> None:
    """Raise ``Rejected('unsigned_reply')`` unless the server signed exactly this answer to this request."""
    message = _reply_message(request_nonce, status, body)
    if not is_hex(signature, SIGNATURE_DIGITS) or not verify(server, message, bytes.fromhex(signature)):
        raise Rejected("unsigned_reply", "the answer is not signed by the validator that was asked")


def _reply_message(request_nonce: str, status: int, body: bytes) -> bytes:
    return f"brigade/1/reply\n{request_nonce}\n{status}\n{sha256_hex(body)}".encode()
