"""Signed extrinsics: decode, and prove that the account signed these bytes for this chain and time.

Format: Substrate extrinsic v4 (``0x84``, MultiAddress::Id, MultiSignature, extra, call). The signature covers call,
extra, and what both sides know without sending it (versions, genesis hash, hash of the era's first block); payloads
over 256 bytes are signed by their blake2b-256.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import bittensor_core

from common.chain.local.runtime import ChainRuntime
from common.chain.local.splice import compact, read_compact

SIGNED_V4 = 0x84
HEAD_BYTES = 1 + 1 + 32 + 1 + 64  # version, address kind, account, signature kind, signature
MAX_EXTRINSIC_BYTES = 1 << 20
HASHED_ABOVE_BYTES = 256
SCHEMES = {0: bittensor_core.CRYPTO_ED25519, 1: bittensor_core.CRYPTO_SR25519}


class BadExtrinsic(Exception):
    """The bytes are no extrinsic that this chain takes. The text is what a Substrate node would say."""


@dataclass(frozen=True)
class Extrinsic:
    """A decoded extrinsic whose signature has been verified."""

    data: bytes  # with its length prefix
    hash: bytes
    account: str
    nonce: int
    call: dict[str, Any]
    expires: int | None  # first block in which it is too late; None if immortal


def decode_signed(
    runtime: ChainRuntime, data: bytes, head: int, block_hash: Callable[[int], bytes | None]
) -> Extrinsic:
    """Decode and verify. Raises ``BadExtrinsic`` for anything else than a good extrinsic."""
    body = _body(data)
    try:
        decoded = runtime.core.decode_extrinsic(data, True)
    except (ValueError, TypeError, KeyError, IndexError, OverflowError) as error:
        raise BadExtrinsic(f"Extrinsic has invalid format: {error}") from None
    if body[0] != SIGNED_V4 or body[1] != 0 or len(body) <= HEAD_BYTES or body[34] not in SCHEMES:
        raise BadExtrinsic("Transaction's signer or signature is of a kind that this chain does not take")
    account = str(decoded["address"])
    expires = _verify(runtime, body, decoded, head, block_hash)
    digest = blake2b(data, digest_size=32).digest()
    return Extrinsic(data, digest, account, int(decoded["nonce"]), decoded["call"], expires)


def _body(data: bytes) -> bytes:
    if not 4 < len(data) <= MAX_EXTRINSIC_BYTES or data[0] & 3 == 3:
        raise BadExtrinsic("Extrinsic has invalid format: wrong length")
    length, start = read_compact(data, 0)
    if length != len(data) - start:
        raise BadExtrinsic("Extrinsic has invalid format: wrong length prefix")
    return data[start:]


def _verify(
    runtime: ChainRuntime,
    body: bytes,
    decoded: dict[str, Any],
    head: int,
    block_hash: Callable[[int], bytes | None],
) -> int | None:
    """Check the signature and the era; returns the block in which the extrinsic expires."""
    era, birth, expires = _era(decoded["era"], head)
    genesis, birth_hash = block_hash(0), block_hash(birth)
    if genesis is None or birth_hash is None:
        raise BadExtrinsic("Transaction has an ancient birth block")
    extra, implied = runtime.core.signature_payload_parts(
        era=era,
        nonce=decoded["nonce"],
        tip=decoded["tip"],
        tip_asset_id=None,
        genesis_hash=genesis,
        era_block_hash=birth_hash,
    )
    payload = body[HEAD_BYTES + len(extra) :] + bytes(extra) + bytes(implied)
    if len(payload) > HASHED_ABOVE_BYTES:
        payload = blake2b(payload, digest_size=32).digest()
    signature, scheme = body[35:99], SCHEMES[body[34]]
    if not bittensor_core.verify(payload, signature, str(decoded["address"]), scheme):
        raise BadExtrinsic("Transaction has a bad signature")
    return expires


def _era(era: Any, head: int) -> tuple[Any, int, int | None]:
    """The era as the codec takes it, its first block, and the first block behind it."""
    if not isinstance(era, (tuple, list)):
        return "00", 0, None
    period, phase = int(era[0]), int(era[1])
    birth = (max(head, phase) - phase) // period * period + phase
    return {"period": period, "phase": phase}, birth, birth + period


def timestamp_inherent(runtime: ChainRuntime, timestamp_ms: int) -> bytes:
    """The unsigned ``Timestamp.set`` that opens every block's body."""
    body = b"\x05" + bytes(runtime.core.compose_call("Timestamp", "set", {"now": timestamp_ms}))
    return compact(len(body)) + body
