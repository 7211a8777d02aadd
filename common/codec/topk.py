"""Sparse codec: of each chunk of 4,096 values the K largest, as ±low or ±high.

A record, the same size for every chunk, so that any run of chunks is a known byte range::

    low, high     1 or 2 bytes each, little-endian (quant.py)
    bits          positions (eliasfano.py), K signs, K choices of magnitude, zeros up to a byte; least significant first

Selection goes by the float's bits as an integer, and of equal magnitudes the first wins: no machine can disagree.
The last chunk is filled up with zeros, which are named only when it has fewer than K values. Vectors of one length
are worked on together, since a chunk alone costs ten times its share of a full block. Canonical: one content has one
record. Levels that are equal are written as ``low``, both of two different levels are used, zero has no minus, and
positions that decode to zero are the first ones possible.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np

from common.codec import quant
from common.codec.eliasfano import IndexLayout, index_layout, read_positions, write_positions
from common.codec.params import CHUNK, F32, I64, U8, U32, Bool, CodecParams, chunk_count
from common.errors import Rejected

BLOCK_CHUNKS = 64  # chunks worked on at a time: bounds memory and stays in the cache
_UNSIGNED = np.uint32(0x7FFFFFFF)


@dataclass(frozen=True)
class RecordLayout:
    """Where the parts of a record lie; a function of the params alone."""

    index: IndexLayout
    magnitude_bits: int

    @property
    def levels_bytes(self) -> int:
        """Bytes of the two magnitudes."""
        return self.magnitude_bits // 4

    @property
    def used_bits(self) -> int:
        """Bits after the magnitudes that carry something."""
        return self.index.bits + 2 * self.index.density

    @property
    def size_bytes(self) -> int:
        """Bytes of one record."""
        return self.levels_bytes + -(-self.used_bits // 8)


@cache
def record_layout(params: CodecParams) -> RecordLayout:
    """The record that ``params`` prescribe."""
    return RecordLayout(index_layout(params.density), params.magnitude_bits)


def encode_records(values: F32, layout: RecordLayout) -> tuple[U8, I64]:
    """Records ``(members, chunks, size)`` of finite vectors ``(members, count)``.

    Also each member's scale of 8-bit magnitudes (0 with 16 bits).
    """
    members, count = values.shape
    scales = np.zeros(members, dtype=np.int64)
    if layout.magnitude_bits == 8:
        scales = quant.scales_of(_largest(values))
    records = np.empty((members, chunk_count(count), layout.size_bytes), dtype=np.uint8)
    bits = values.view(np.uint32)
    for who, chunks, valid in _blocks(members, 0, records.shape[1], count):
        block, part = _rows(bits[who, chunks.start * CHUNK : chunks.stop * CHUNK]), records[who, chunks]
        row_scales = np.repeat(scales[who], part.shape[1])
        part[:] = _encode_block(block, valid, layout, row_scales).reshape(part.shape)
    if layout.magnitude_bits == 8:
        codes, scales = quant.rebased(records[:, :, :2].astype(np.int64), scales)
        records[:, :, :2] = codes
    return records, scales


def decode_records(records: U8, layout: RecordLayout, scales: I64, first_chunk: int, count: int) -> F32:
    """Values ``(members, …)`` of the chunks from ``first_chunk`` on of vectors of ``count`` values.

    ``records`` is ``(members, chunks, size)``. Raises ``Rejected`` for what the first bad block holds.
    """
    members, num_chunks = records.shape[:2]
    out = np.zeros((members, num_chunks, CHUNK), dtype=np.uint32)
    for who, chunks, valid in _blocks(members, first_chunk, first_chunk + num_chunks, count):
        own = slice(chunks.start - first_chunk, chunks.stop - first_chunk)
        part = records[who, own]
        row_scales = np.repeat(scales[who], part.shape[1])
        starts = np.arange(members * num_chunks, dtype=np.int64).reshape(members, num_chunks)[who, own].reshape(-1)
        _decode_block(part.reshape(-1, layout.size_bytes), valid, layout, row_scales, out, starts * CHUNK)
    width = min((first_chunk + num_chunks) * CHUNK, count) - first_chunk * CHUNK
    return out.reshape(members, -1)[:, :width].view(np.float32)


def _level_codes(records: U8, layout: RecordLayout) -> I64:
    """The two magnitude codes ``(…, 2)`` of records ``(…, size)``."""
    levels = np.ascontiguousarray(records[..., : layout.levels_bytes])
    return levels.view("<u2" if layout.magnitude_bits == 16 else "u1").astype(np.int64)


def _blocks(members: int, first_chunk: int, end_chunk: int, count: int) -> Iterator[tuple[slice, slice, int]]:
    """Members × chunks of at most ``BLOCK_CHUNKS``, with the number of values in each chunk.

    Chunks that are partly filled, which only a last one is, come apart from the full ones.
    """
    full = min(end_chunk, count // CHUNK)
    for first in range(first_chunk, full, BLOCK_CHUNKS):
        chunks = slice(first, min(first + BLOCK_CHUNKS, full))
        yield from ((who, chunks, CHUNK) for who in _groups(members, chunks.stop - first))
    if full < end_chunk:
        yield from ((who, slice(full, end_chunk), count % CHUNK) for who in _groups(members, 1))


def _groups(members: int, num_chunks: int) -> Iterator[slice]:
    step = max(1, BLOCK_CHUNKS // num_chunks)
    return (slice(first, min(first + step, members)) for first in range(0, members, step))


def _rows(bits: U32) -> U32:
    """Values ``(members, any number)`` as chunks ``(rows, 4096)``, the last of each filled up with zeros."""
    members, width = bits.shape
    if width % CHUNK:
        bits = np.concatenate([bits, np.zeros((members, -width % CHUNK), dtype=np.uint32)], axis=1)
    return bits.reshape(-1, CHUNK)


def _largest(values: F32) -> U32:
    """Bits of the largest magnitude of each of the finite vectors ``(members, count)``."""
    largest = np.maximum(values.max(axis=1, initial=0), -values.min(axis=1, initial=0))
    bits: U32 = largest.view(np.uint32)
    return np.bitwise_and(bits, _UNSIGNED)


def _encode_block(bits: U32, valid: int, layout: RecordLayout, scales: I64) -> U8:
    density = layout.index.density
    indices = _select(bits & _UNSIGNED, density)
    kept = bits if density == CHUNK else bits.reshape(-1)[indices + _row_starts(len(bits))]
    magnitudes = kept & _UNSIGNED
    levels = quant.two_means(magnitudes[:, : min(density, valid)])
    codes = _codes(levels, layout.magnitude_bits, scales)
    low, high = codes[:, :1], codes[:, 1:]
    upper = (magnitudes >= levels.threshold[:, None]) & (low < high)
    negative = (kept >> 31).astype(np.bool_) & ((low > 0) | upper) & (magnitudes > 0)
    empty = codes[:, 1] == 0
    if empty.any() and density < CHUNK:
        indices[empty] = np.arange(density)
    return _pack(codes, (write_positions(indices, layout.index), negative, upper), layout)


def _row_starts(rows: int) -> I64:
    return np.arange(0, rows * CHUNK, CHUNK, dtype=np.int64)[:, None]


def _select(magnitudes: U32, density: int) -> I64:
    """Positions ``(rows, density)`` of the largest of each row, in order; of equal ones the first."""
    rows = len(magnitudes)
    if density == CHUNK:
        return np.broadcast_to(np.arange(CHUNK, dtype=np.int64), (rows, CHUNK))
    smallest = np.partition(magnitudes, CHUNK - density, axis=1)[:, CHUNK - density, None]
    mask = magnitudes >= smallest
    found = np.flatnonzero(mask)
    if len(found) > rows * density:
        _drop_last_equals(mask, magnitudes, smallest, density)
        found = np.flatnonzero(mask)
    return (found & (CHUNK - 1)).reshape(rows, density)


def _drop_last_equals(mask: Bool, magnitudes: U32, smallest: U32, density: int) -> None:
    """Leaves ``density`` positions in each row of ``mask``: of those that equal the smallest, the first ones."""
    rows = np.flatnonzero(np.count_nonzero(mask, axis=1) > density)
    equal = magnitudes[rows] == smallest[rows]
    larger = mask[rows] & ~equal
    room = density - np.count_nonzero(larger, axis=1)
    mask[rows] = larger | (equal & (np.cumsum(equal, axis=1) <= room[:, None]))


def _codes(levels: quant.Levels, magnitude_bits: int, scales: I64) -> I64:
    """Codes ``(rows, 2)``. A chunk too small for the scale is zero; otherwise only zeros have a level of zero."""
    high = quant.to_codes(levels.high, magnitude_bits, scales)
    low = quant.to_codes(levels.low, magnitude_bits, scales)
    low = np.where((high == 0) | levels.low_is_zero, 0, np.maximum(low, 1))
    return np.stack([low, high], axis=1)


def _pack(codes: I64, parts: tuple[Bool, Bool, Bool], layout: RecordLayout) -> U8:
    levels = codes.astype("<u2" if layout.magnitude_bits == 16 else "u1").view(np.uint8)
    return np.concatenate([levels, np.packbits(np.concatenate(parts, axis=1), axis=1, bitorder="little")], axis=1)


def _decode_block(records: U8, valid: int, layout: RecordLayout, scales: I64, out: U32, starts: I64) -> None:
    """Writes the values of records ``(rows, size)`` into zeros, each row from its place in ``starts`` on."""
    codes = _level_codes(records, layout)
    _check_codes(codes, layout.magnitude_bits)
    bits = np.unpackbits(records[:, layout.levels_bytes :], axis=1, bitorder="little").view(np.bool_)
    if bits[:, layout.used_bits :].any():
        raise Rejected("non_canonical", "the unused bits of a record are not zero")
    start, density = layout.index.bits, layout.index.density
    indices = read_positions(bits[:, :start], layout.index)
    negative, upper = bits[:, start : start + density], bits[:, start + density : layout.used_bits]
    _check_canonical(codes, indices, negative, upper, valid)
    low, high = (quant.from_codes(codes[:, i], layout.magnitude_bits, scales)[:, None] for i in (0, 1))
    values = np.where(upper, high, low) | (negative.astype(np.uint32) << 31)
    if density == CHUNK:
        out.reshape(-1, CHUNK)[starts // CHUNK] = values
    else:
        out.reshape(-1)[indices + starts[:, None]] = values


def _check_codes(codes: I64, magnitude_bits: int) -> None:
    if magnitude_bits == 16 and ((codes & 0x7FFF) > quant.MAX_BF16).any():
        raise Rejected("non_finite", "a record's magnitude is infinite or not a number")
    if magnitude_bits == 16 and (codes > quant.MAX_BF16).any():
        raise Rejected("bad_magnitude", "a record's magnitude has a sign")
    if (codes[:, 0] > codes[:, 1]).any():
        raise Rejected("bad_magnitude", "a record's low magnitude is above its high one")


def _check_canonical(codes: I64, indices: I64, negative: Bool, upper: Bool, valid: int) -> None:
    """Raises unless the encoder could have written these records; ``valid`` of each chunk's values exist."""
    density = indices.shape[1]
    real = min(density, valid)
    if valid < CHUNK and (indices[:, real - 1] >= valid).any():
        raise Rejected("bad_indices", "a record names a position past the vector's end in place of one before it")
    if real < density and (indices != np.arange(density)).any():
        raise Rejected("non_canonical", "a record names a position past the end that is not the first possible")
    if negative[:, real:].any() or upper[:, real:].any():
        raise Rejected("non_canonical", "a record gives a value to a position past the vector's end")
    two = codes[:, 0] < codes[:, 1]
    if (upper.any(axis=1) != two).any() or (upper[:, :real].all(axis=1) & two).any():
        raise Rejected("non_canonical", "a record does not use both of its magnitudes, or names one twice")
    rows = np.flatnonzero(codes[:, 0] == 0)
    if rows.size:
        zero = ~upper[rows]
        if (negative[rows] & zero).any():
            raise Rejected("non_canonical", "a record holds a negative zero")
        if ((indices[rows] != np.arange(density)) & zero).any():
            raise Rejected("non_canonical", "a record names a zero that is not the first one possible")
