"""The trace of a miner's work: what each inner step saw and gave, and the Merkle root that the manifest holds.

The root, signed before anybody knows which steps a validator will re-execute, fixes them all. Leaves and nodes are
hashed with different first bytes (RFC 6962), and an odd node moves up unchanged, so no tree of one length is a tree of
another.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from common.units import Sha256

_LEAF = struct.Struct(">QQIff")


@dataclass(frozen=True)
class TraceStep:
    """One inner step that was taken. Loss and gradient norm are float32."""

    global_step: int
    sample_start: int
    """First sample of its batch in the miner's stream of the round."""
    samples: int
    loss: float
    grad_norm: float

    def leaf(self) -> bytes:
        """32 bytes that commit to the step."""
        packed = _LEAF.pack(self.global_step, self.sample_start, self.samples, self.loss, self.grad_norm)
        return hashlib.sha256(b"\x00" + packed).digest()


def trace_root(steps: Sequence[TraceStep]) -> Sha256:
    """Merkle root of the steps in order; of none, the SHA-256 of nothing."""
    level = [step.leaf() for step in steps]
    if not level:
        return Sha256(hashlib.sha256(b"").hexdigest())
    while len(level) > 1:
        level = _parents(level)
    return Sha256(level[0].hex())


def _parents(level: list[bytes]) -> list[bytes]:
    pairs = [_node(level[i], level[i + 1]) for i in range(0, len(level) - 1, 2)]
    return pairs + level[-1:] if len(level) % 2 else pairs


def _node(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\x01" + left + right).digest()
