"""Sparse codec: of each chunk of 4,096 values the K largest, as ±low or ±high.

A record, the same size for every chunk, so that any run of chunks is a known byte range::

    low, high     1 or 2 bytes each, little-endian (quant.py)
    bits          positions (eliasfano.py), K signs, K choices of magnitude, zeros up to a byte; least significant first

Selection goes by the unique integer ``float bits · 4096 + (4095 − position)``: of equal magnitudes the first wins,
and no machine can disagree. The last chunk is filled up with zeros, which are named only when it has fewer than K
values. Canonical: one content has one record. Levels that are equal are written as ``low``, both of two different
levels are used, zero has no minus, and positions that decode to zero are the first ones possible.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from common.codec import quant
from common.codec.eliasfano import IndexLayout, index_layout, read_positions, write_positions
from common.codec.params import CHUNK, F32, I64, U8, U32, Bool, CodecParams, chunk_count
from common.errors import Rejected

BLOCK_CHUNKS = 64  # chunks worked on at a time: bounds memory and stays in the cache
_UNSIGNED = np.uint32(0x7FFFFFFF)
_REVERSED = np.arange(CHUNK - 1, -1, -1, dtype=np.int64)


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


def record_layout(params: CodecParams) -> RecordLayout:
    """The record that ``params`` prescribe."""
    return RecordLayout(index_layout(params.density), params.magnitude_bits)


def encode_records(values: F32, layout: RecordLayout) -> tuple[U8, int]:
    """Records ``(chunks, size)`` of a finite vector, and the scale of 8-bit magnitudes (0 with 16 bits)."""
    bits = values.view(np.uint32)
    scale = quant.scale_of(int((bits & _UNSIGNED).max(initial=0))) if layout.magnitude_bits == 8 else 0
    records = np.zeros((chunk_count(len(values)), layout.size_bytes), dtype=np.uint8)
    for first, last, valid in _blocks(0, len(records), len(values)):
        block = _rows(bits[first * CHUNK : last * CHUNK], last - first)
        records[first:last] = _encode_block(block, valid, layout, scale)
    if layout.magnitude_bits == 8:
        codes, scale = quant.rebased(records[:, :2].astype(np.int64), scale)
        records[:, :2] = codes
    return records, scale


def decode_records(records: U8, layout: RecordLayout, scale: int, first_chunk: int, count: int) -> F32:
    """Values of the chunks from ``first_chunk`` on, of a vector of ``count`` values; raises ``Rejected``."""
    end = first_chunk + len(records)
    out = np.zeros((len(records), CHUNK), dtype=np.uint32)
    for first, last, valid in _blocks(first_chunk, end, count):
        span = slice(first - first_chunk, last - first_chunk)
        _decode_block(records[span], valid, layout, scale, out[span])
    return out.reshape(-1)[: min(end * CHUNK, count) - first_chunk * CHUNK].view(np.float32)


def level_codes(records: U8, layout: RecordLayout) -> I64:
    """The two magnitude codes ``(rows, 2)`` of records."""
    levels = np.ascontiguousarray(records[:, : layout.levels_bytes])
    return levels.view("<u2" if layout.magnitude_bits == 16 else "u1").astype(np.int64)


def _blocks(first_chunk: int, end_chunk: int, count: int) -> Iterator[tuple[int, int, int]]:
    """Runs of chunks with the number of values in each; a partly filled last chunk comes alone."""
    full = min(end_chunk, count // CHUNK)
    for first in range(first_chunk, full, BLOCK_CHUNKS):
        yield first, min(first + BLOCK_CHUNKS, full), CHUNK
    if full < end_chunk:
        yield full, end_chunk, count % CHUNK


def _rows(bits: U32, rows: int) -> U32:
    if bits.size < rows * CHUNK:
        bits = np.concatenate([bits, np.zeros(rows * CHUNK - bits.size, dtype=np.uint32)])
    return bits.reshape(rows, CHUNK)


def _encode_block(bits: U32, valid: int, layout: RecordLayout, scale: int) -> U8:
    rows, density = len(bits), layout.index.density
    mask = _select(bits & _UNSIGNED, density)
    kept = bits if density == CHUNK else bits[mask].reshape(rows, density)
    magnitudes = kept & _UNSIGNED
    levels = quant.two_means(magnitudes[:, : min(density, valid)])
    codes = _codes(levels, layout.magnitude_bits, scale)
    low, high = codes[:, :1], codes[:, 1:]
    upper = (magnitudes >= levels.threshold[:, None]) & (low < high)
    negative = (kept >> 31).astype(np.bool_) & ((low > 0) | upper) & (magnitudes > 0)
    empty = codes[:, 1] == 0
    if empty.any():
        mask[empty] = np.arange(CHUNK) < density
    return _pack(codes, (write_positions(mask, layout.index), negative, upper), layout)


def _select(magnitudes: U32, density: int) -> Bool:
    """Masks of the ``density`` largest of each row; of equal ones the first."""
    if density == CHUNK:
        return np.ones(magnitudes.shape, dtype=np.bool_)
    keys = magnitudes.astype(np.int64)
    keys <<= 12
    keys |= _REVERSED
    smallest = np.partition(keys, CHUNK - density, axis=1)[:, CHUNK - density]
    return keys >= smallest[:, None]


def _codes(levels: quant.Levels, magnitude_bits: int, scale: int) -> I64:
    """Codes ``(rows, 2)``. A chunk too small for the scale is zero; otherwise only zeros have a level of zero."""
    high = quant.to_codes(levels.high, magnitude_bits, scale)
    low = quant.to_codes(levels.low, magnitude_bits, scale)
    low = np.where((high == 0) | levels.low_is_zero, 0, np.maximum(low, 1))
    return np.stack([low, high], axis=1)


def _pack(codes: I64, parts: tuple[Bool, Bool, Bool], layout: RecordLayout) -> U8:
    levels = codes.astype("<u2" if layout.magnitude_bits == 16 else "u1").view(np.uint8)
    return np.concatenate([levels, np.packbits(np.concatenate(parts, axis=1), axis=1, bitorder="little")], axis=1)


def _decode_block(records: U8, valid: int, layout: RecordLayout, scale: int, out: U32) -> None:
    codes = level_codes(records, layout)
    _check_codes(codes, layout.magnitude_bits)
    bits = np.unpackbits(records[:, layout.levels_bytes :], axis=1, bitorder="little").view(np.bool_)
    if bits[:, layout.used_bits :].any():
        raise Rejected("non_canonical", "the unused bits of a record are not zero")
    start, density = layout.index.bits, layout.index.density
    indices = read_positions(bits[:, :start], layout.index)
    negative, upper = bits[:, start : start + density], bits[:, start + density : layout.used_bits]
    _check_canonical(codes, indices, negative, upper, valid)
    low, high = (quant.from_codes(codes[:, i : i + 1], layout.magnitude_bits, scale) for i in (0, 1))
    values = np.where(upper, high, low) | (negative.astype(np.uint32) << 31)
    if density == CHUNK:
        out[:] = values
    else:
        np.put_along_axis(out, indices, values, axis=1)


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
