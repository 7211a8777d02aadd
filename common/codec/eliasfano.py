"""Which K of a chunk's 4,096 positions are sent, in a fixed number of bits.

Three forms, the smallest for K wins: nothing at K = 4096; Elias–Fano (P. Elias 1974, R. Fano 1971: the low bits of
each index plain, the high bits in unary, 8 bits an index at K = 64 and 5 at 512); a bitmap from K = 1024 on, where
it is no larger. The low bits are stored as planes (bit 0 of every index, then bit 1 …), which makes both directions
a handful of vector operations.

Invariant: strictly increasing indices below 4,096 and their bits determine each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from common.codec.params import CHUNK, I64, Bool
from common.errors import Rejected

Form = Literal["all", "bitmap", "elias_fano"]


@dataclass(frozen=True)
class IndexLayout:
    """How the positions of one chunk are written; a function of the density alone."""

    density: int
    form: Form
    low_bits: int
    bits: int
    """Length of the index part of a record, in bits."""

    @property
    def high_bits(self) -> int:
        """Length of the unary part: one 1 per index and one 0 per bucket."""
        return self.density + (CHUNK >> self.low_bits)


def index_layout(density: int) -> IndexLayout:
    """The smallest form for ``density`` positions of a chunk."""
    if density == CHUNK:
        return IndexLayout(density, "all", 0, 0)
    low_bits = (CHUNK // density).bit_length() - 1
    elias_fano = density * low_bits + density + (CHUNK >> low_bits)
    if elias_fano < CHUNK:
        return IndexLayout(density, "elias_fano", low_bits, elias_fano)
    return IndexLayout(density, "bitmap", 0, CHUNK)


def write_positions(indices: I64, layout: IndexLayout) -> Bool:
    """Bits ``(rows, layout.bits)`` of strictly increasing positions ``(rows, density)``."""
    rows, density = len(indices), layout.density
    bits = np.zeros((rows, layout.bits), dtype=np.bool_)
    if layout.form == "all":
        return bits
    for plane in range(layout.low_bits):
        bits[:, plane * density : (plane + 1) * density] = (indices >> plane) & 1
    places = indices
    if layout.form == "elias_fano":
        start = layout.bits - layout.high_bits
        places = (indices >> layout.low_bits) + np.arange(start, start + density)
    bits.reshape(-1)[places + np.arange(0, bits.size, layout.bits)[:, None]] = True
    return bits


def read_positions(bits: Bool, layout: IndexLayout) -> I64:
    """Indices ``(rows, density)``, strictly increasing and below 4,096, of bits ``(rows, layout.bits)``.

    Raises ``Rejected("bad_indices")`` for anything else.
    """
    rows, density = len(bits), layout.density
    if layout.form == "all":
        return np.broadcast_to(np.arange(CHUNK, dtype=np.int64), (rows, CHUNK))
    unary = bits[:, layout.bits - layout.high_bits :] if layout.form == "elias_fano" else bits
    if (np.count_nonzero(unary, axis=1) != density).any():
        raise Rejected("bad_indices", f"a record does not name exactly {density} positions")
    found = np.flatnonzero(unary).reshape(rows, density)
    found -= np.arange(rows, dtype=np.int64)[:, None] * unary.shape[1]
    if layout.form == "bitmap":
        return found
    indices = (found - np.arange(density)) << layout.low_bits
    for plane in range(layout.low_bits):
        indices |= bits[:, plane * density : (plane + 1) * density].astype(np.int64) << plane
    if (indices >= CHUNK).any() or (indices[:, 1:] <= indices[:, :-1]).any():
        raise Rejected("bad_indices", f"a record's positions are not strictly increasing below {CHUNK}")
    return indices
