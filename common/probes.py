"""What a probe of a link transfers, and the proof that it was transferred: both are bound to a nonce.

A validator that wants to know how fast a miner's link to the storage is asks for one small transfer, and times it by
its own clock from the order to the answer. Upwards the miner puts bytes that follow from the nonce, so that nothing can
be prepared; downwards it reads fresh random bytes, and proves that it has read them.
"""

from __future__ import annotations

import hashlib

from common.units import Sha256, sha256_hex

MIN_PROBE_BYTES = 64 * 1024
MAX_PROBE_BYTES = 4 << 20
NONCE_BYTES = 16
_DOMAIN = b"brigade/1/probe\n"


def uplink_bytes(nonce: str, size_bytes: int) -> bytes:
    """The body of a probe of the uplink: so many bytes of SHAKE-128 (FIPS 202) over the nonce; nothing compresses them.

    Raises ValueError for a nonce that is not hex.
    """
    return hashlib.shake_128(_DOMAIN + bytes.fromhex(nonce)).digest(size_bytes)


def downlink_proof(nonce: str, body: bytes) -> Sha256:
    """What only a reader of ``body`` can say under this nonce. Raises ValueError for a nonce that is not hex."""
    return sha256_hex(_DOMAIN + bytes.fromhex(nonce) + body)
