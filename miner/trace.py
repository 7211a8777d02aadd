"""The trace of a miner's work: what each inner step saw and gave, and what a manifest says of it.

Training goes on from round to round, so each step knows the stream that it drew from. The Merkle root, signed before
anybody knows which steps a validator will re-execute, fixes them all. Leaves and nodes are hashed with different first
bytes (RFC 6962), and an odd node moves up unchanged, so no tree of one length is a tree of another.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from common.records import MAX_SAMPLE_RANGES, SampleRange
from common.units import Revision, RoundId, Sha256

_LEAF = struct.Struct(">QQQQIff")


@dataclass(frozen=True)
class TraceStep:
    """One inner step that was taken. Loss and gradient norm are float32."""

    round: RoundId
    base_revision: Revision
    """With the round it names the stream that the batch came from."""
    global_step: int
    sample_start: int
    """First sample of its batch in that stream."""
    samples: int
    loss: float
    grad_norm: float

    @property
    def stream(self) -> tuple[RoundId, Revision]:
        return self.round, self.base_revision

    @property
    def next_sample(self) -> int:
        return self.sample_start + self.samples

    def leaf(self) -> bytes:
        """32 bytes that commit to the step."""
        place = (self.round, self.base_revision, self.global_step, self.sample_start, self.samples)
        return hashlib.sha256(b"\x00" + _LEAF.pack(*place, self.loss, self.grad_norm)).digest()


def sample_ranges(steps: Sequence[TraceStep]) -> tuple[SampleRange, ...]:
    """The samples of ``steps`` in order; a step that was left out begins another range."""
    ranges: list[SampleRange] = []
    for step in steps:
        last = ranges[-1] if ranges else None
        if last and (last.round, last.base_revision, last.start + last.count) == (*step.stream, step.sample_start):
            ranges[-1] = SampleRange(step.round, step.base_revision, last.start, last.count + step.samples)
        else:
            ranges.append(SampleRange(step.round, step.base_revision, step.sample_start, step.samples))
    return tuple(ranges)


def claimed(steps: Sequence[TraceStep], base: Revision) -> tuple[TraceStep, ...]:
    """Those whose samples a manifest on ``base`` can name: all of them, but for a long calamity.

    It names the newest ranges, of streams so few revisions back that a leader looks for them.
    """
    near = [step for step in steps if step.base_revision > base - MAX_SAMPLE_RANGES]
    ranges = sample_ranges(near)
    left_out = sum(part.count for part in ranges[:-MAX_SAMPLE_RANGES])
    first = 0
    while left_out > 0:
        left_out -= near[first].samples
        first += 1
    return tuple(near[first:])


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
