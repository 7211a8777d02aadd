"""Many vectors of one length at once: the same bytes and values as one at a time, at a fraction of the cost.

A vector of one chunk costs ten times its share of a full block, nearly all of it in calls; here the chunks of
different vectors fill a block together. Invariants: ``encode_many`` gives what ``encode`` gives for each vector;
``decode_many`` gives for each body the values that ``decode`` gives, or the very refusal that it raises.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from common.codec.container import HEADER_BYTES, check, decode, encode, header, record_bytes
from common.codec.params import F32, Bool, CodecParams, chunk_count
from common.codec.topk import BLOCK_CHUNKS, decode_records, encode_records, record_layout
from common.errors import Rejected


@dataclass(frozen=True)
class Decoded:
    """What a list of bodies holds."""

    values: F32
    """``(bodies, count)``; a refused body's row is zero."""
    refused: Mapping[int, Rejected]
    """Why, by index in the list."""


def encode_many(values: F32, params: CodecParams) -> list[bytes]:
    """The encoding of each row of a float32 matrix ``(vectors, count)``. Raises ``ValueError`` if one is not finite."""
    if values.ndim != 2 or values.dtype != np.float32:
        raise ValueError(f"encode_many takes a float32 matrix, not {values.dtype} of shape {values.shape}")
    values = np.ascontiguousarray(values)
    bad = np.flatnonzero(~_finite_rows(values))
    if bad.size:
        raise ValueError(f"vectors {bad[:10].tolist()} hold infinite values or NaN; nothing was encoded")
    if params.kind == "bf16":
        return [encode(row, params) for row in values]
    records, scales = encode_records(values, record_layout(params))
    count = values.shape[1]
    return [header(count, params, int(scale)) + own.tobytes() for own, scale in zip(records, scales, strict=True)]


def decode_many(bodies: Sequence[bytes | memoryview], *, expect: CodecParams, count: int) -> Decoded:
    """The values of each body, or why it is refused; raises nothing for what a stranger wrote."""
    values = np.zeros((len(bodies), count), dtype=np.float32)
    refused: dict[int, Rejected] = {}
    step = max(1, BLOCK_CHUNKS // max(1, chunk_count(count)))
    for first in range(0, len(bodies), step):
        group, out = bodies[first : first + step], values[first : first + step]
        if not _decode_block(group, expect, count, out):
            refused |= {first + i: refusal for i, refusal in _one_by_one(group, expect, count, out).items()}
    return Decoded(values, refused)


def _decode_block(bodies: Sequence[bytes | memoryview], expect: CodecParams, count: int, out: F32) -> bool:
    """Whether all of ``bodies`` were decoded together into ``out``: few enough of them, sparse, and all valid."""
    if len(bodies) == 1 or expect.kind == "bf16":
        return False
    try:
        scales = np.array([check(body, expect=expect, count=count) for body in bodies], dtype=np.int64)
        whole = np.frombuffer(b"".join(bodies), dtype=np.uint8).reshape(len(bodies), -1)
        records = whole[:, HEADER_BYTES:].reshape(len(bodies), -1, record_bytes(expect))
        out[:] = decode_records(records, record_layout(expect), scales, 0, count)
    except Rejected:
        return False
    return True


def _one_by_one(bodies: Sequence[bytes | memoryview], expect: CodecParams, count: int, out: F32) -> dict[int, Rejected]:
    refused: dict[int, Rejected] = {}
    for i, body in enumerate(bodies):
        try:
            out[i] = decode(body, expect=expect, count=count)
        except Rejected as refusal:
            refused[i] = refusal
    return refused


def _finite_rows(values: F32) -> Bool:
    """Which rows are finite, with a scratch of one row: a whole matrix of flags would be a quarter of the input."""
    return np.array([np.isfinite(row).all() for row in values], dtype=np.bool_)
