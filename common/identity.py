"""Who signed what: signers, and the envelope of every signed record.

A record is ``{"body": {...}, "signature": "<128 hex>"}`` in canonical JSON. Every body has ``schema``, ``run`` and
``signer``; the signature is sr25519 over ``brigade/1/<kind>\\n`` + the body's bytes. The record's hash covers the body
without the signature, since sr25519 signatures of the same body differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

from bittensor_core import CRYPTO_SR25519, Keypair, verify_signature

from common import canonical
from common.canonical import Json
from common.errors import Rejected
from common.units import Hotkey, Sha256, is_hex, sha256_hex

SIGNATURE_DIGITS = 128
"""Hex digits of an sr25519 signature."""


class Signer(Protocol):
    """Something that holds an sr25519 hotkey."""

    @property
    def hotkey(self) -> Hotkey: ...

    def sign(self, message: bytes) -> bytes:
        """64 bytes of signature."""
        ...


class KeypairSigner:
    """A signer over a keypair in memory: anything with ``ss58_address`` and ``sign``."""

    def __init__(self, keypair: Any) -> None:
        if keypair.crypto_type != CRYPTO_SR25519:
            raise ValueError("Brigade signs with sr25519 keys only")
        self.keypair = keypair

    @property
    def hotkey(self) -> Hotkey:
        return Hotkey(self.keypair.ss58_address)

    def sign(self, message: bytes) -> bytes:
        return bytes(self.keypair.sign(message))

    @classmethod
    def from_uri(cls, uri: str) -> KeypairSigner:
        """A development key such as ``//Alice``: known to everybody, worth nothing."""
        return cls(_development_keypair(uri))


@lru_cache(maxsize=4096)
def _development_keypair(uri: str) -> Any:
    """Derived once in a process: a simulator makes the same machines over and over."""
    return Keypair.create_from_uri(uri)


def verify(hotkey: str, message: bytes, signature: bytes) -> bool:
    """Whether ``signature`` is the hotkey's. Total: a malformed address or signature is just not valid."""
    try:
        return bool(verify_signature(message, signature, hotkey, CRYPTO_SR25519))
    except ValueError:
        return False


@dataclass(frozen=True)
class SignedRecord:
    """A body with its signature, as read from or written to the bucket or the wire."""

    kind: str
    body: dict[str, Json]
    signature: str

    @property
    def signer(self) -> Hotkey:
        return Hotkey(str(self.body["signer"]))

    @property
    def sha256(self) -> Sha256:
        """Hash of the body's canonical bytes: the record's name."""
        return sha256_hex(canonical.dumps(self.body))

    def to_json(self) -> dict[str, Json]:
        return {"body": self.body, "signature": self.signature}

    def encode(self) -> bytes:
        """The canonical bytes of the envelope."""
        return canonical.dumps(self.to_json())


def sign_record(kind: str, body: dict[str, Json], signer: Signer) -> SignedRecord:
    """Sign ``body`` (``signer`` is set to the signer's hotkey) as a record of ``kind``."""
    complete: dict[str, Json] = {**body, "signer": str(signer.hotkey)}
    signature = signer.sign(_message(kind, complete))
    return SignedRecord(kind, complete, signature.hex())


def open_record(kind: str, value: Json, run: str, schema: int) -> SignedRecord:
    """Check an envelope of foreign origin: shape, run, schema and signature.

    Raises ``Rejected('bad_record' | 'wrong_run' | 'unknown_schema' | 'bad_signature')``.
    """
    body, signature = _unpack(value)
    if body.get("schema") != schema:
        raise Rejected("unknown_schema", f"the {kind} has a schema that this version does not know; update brigade")
    if body.get("run") != run:
        raise Rejected("wrong_run", f"the {kind} belongs to another run")
    signer = body.get("signer")
    try:
        message = _message(kind, body)
    except ValueError as error:  # a body that came as other JSON than ours: floats, deep nesting, huge numbers
        raise Rejected("bad_record", f"the {kind} has no canonical form: {error}") from None
    if not isinstance(signer, str) or not verify(signer, message, bytes.fromhex(signature)):
        raise Rejected("bad_signature", f"the {kind} is not signed by the hotkey it names")
    return SignedRecord(kind, body, signature)


def decode_record(kind: str, data: bytes, run: str, schema: int, max_bytes: int) -> SignedRecord:
    """``open_record`` for bytes, which must be canonical."""
    return open_record(kind, canonical.loads(data, max_bytes), run, schema)


def _message(kind: str, body: dict[str, Json]) -> bytes:
    return f"brigade/1/{kind}\n".encode() + canonical.dumps(body)


def _unpack(value: Json) -> tuple[dict[str, Json], str]:
    if not isinstance(value, dict) or value.keys() != {"body", "signature"}:
        raise Rejected("bad_record", "a signed record has exactly body and signature")
    body, signature = value["body"], value["signature"]
    if not isinstance(body, dict) or not isinstance(signature, str) or not is_hex(signature, SIGNATURE_DIGITS):
        raise Rejected("bad_record", "a signed record has an object as body and 128 hex digits as signature")
    return body, signature
