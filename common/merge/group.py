"""One pass over a round's deltas: norms, cosines and shared positions, from which every gate is computed.

Exact where the deltas are few and short: the work for all pairs is members² × values and is bounded by ``PAIR_WORK``.
Beyond that the norms and counts stay exact, and pairs are compared on a sketch (``sketch.py``), both the values and
the sets of positions, in buckets as many as the same bound allows: the cost is linear in the values. ``error`` says
what a small cosine may be off by (standard deviation): .008 for 256 members, .031 for 1,000.

Copies need no second, exact look. The cosine of two sketches is off by ``(1 − cos²) · error``, so a copy's .95 and more
by a tenth of it, while the .3 of the most alike honest deltas lies ten to twenty times ``error`` below; what lies
within it of the limit is no honest work on either side. Whoever concentrates its delta on few coordinates to blur the
sketch blurs its own figures only: an honest delta spreads over all buckets.

Sums go through BLAS: they may differ in the last bits between machines, which does no harm because what the gates
decide is fixed as exact bits in the plan.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from common.codec.params import F32, F64, I64, Bool
from common.merge.sketch import SPAN, Fold

PAIR_WORK = 1 << 30
"""Most multiplications for one comparison of all pairs: about 30 ms of one core."""
MAX_EXACT_VALUES = 1 << 25
"""Most values, all deltas together, that are kept as they are: 128 MiB."""
MAX_WIDTH = 1 << 14
"""Most buckets; more would cost memory and improve nothing that a gate asks for."""
_PIECE = 1 << 20
_MIN_WIDTH = 256
_COARSER = 4
"""Positions need fewer buckets than values: only copies are looked for, not directions."""
_MAX_FILL = 0.5
_MAX_RATIO = 2

Pairs: TypeAlias = npt.NDArray[np.float32] | npt.NDArray[np.float64]


@dataclass(frozen=True)
class GroupStats:
    """Facts on n decoded deltas of ``count`` values, in the members' order."""

    count: int
    finite: Bool
    """Which deltas are free of infinities and NaN; the others count as zero everywhere else."""
    filled: I64
    """Values that are not zero ``(n,)``."""
    norms: F64
    """L2 norms ``(n,)``."""
    cosines: Pairs
    """Cosines ``(n, n)``; 0 where a delta is zero."""
    overlaps: Pairs
    """How far the positions of two deltas agree beyond chance ``(n, n)``: 1 for a copy, about 0 for strangers.

    The share of the smaller set, corrected for the fill of the larger one. 0 when that is above one half, where
    positions say nothing, and when one set is more than twice the other: a handful of positions lies in many an
    honest delta, and must not make copies of them."""
    error: float
    """Standard deviation of a small cosine, and half that of a small overlap; 0 when all is exact."""


def sketch_width(members: int) -> int:
    """Buckets at which the comparison of all pairs keeps to ``PAIR_WORK``: a power of two, 256 at the least."""
    width = _MIN_WIDTH
    while width < MAX_WIDTH and 2 * width * members * members <= PAIR_WORK:
        width *= 2
    return width


def is_exact(members: int, count: int) -> bool:
    """Whether so many deltas of this length are compared value by value."""
    return members * members * count <= PAIR_WORK and members * count <= MAX_EXACT_VALUES


class GroupStatsBuilder:
    """Takes the deltas in blocks of any shape and order, each value once.

    ``seed`` makes the sketch; nobody may know it before the deltas are handed in.
    """

    def __init__(self, members: int, count: int, seed: int) -> None:
        self._members, self._count = members, count
        self._seen = np.zeros(members, dtype=np.int64)
        self._finite = np.ones(members, dtype=np.bool_)
        self._filled = np.zeros(members, dtype=np.int64)
        self._squares = np.zeros(members, dtype=np.float64)
        self._fold: Fold | None = None
        if is_exact(members, count):
            self._whole: F32 = np.zeros((members, count), dtype=np.float32)
        else:
            self._fold = Fold(count, sketch_width(members), seed)
            self._values = np.zeros((members, sketch_width(members)), dtype=np.float64)
            coarse = max(_MIN_WIDTH, sketch_width(members) // _COARSER)
            self._places = np.zeros((members, coarse), dtype=np.float64)

    def add(self, first: int, start: int, block: F32) -> None:
        """Adds values ``(k, width)``: of the k members from ``first`` on, from position ``start`` on."""
        members, width = block.shape
        if first + members > self._members or start + width > self._count:
            raise ValueError(f"a block {block.shape} at {first}, {start} of {self._members} × {self._count} values")
        self._seen[first : first + members] += width
        for who, part in _pieces(members, start, width):
            piece = block[who, part.start - start : part.stop - start]
            self._add(slice(first + who.start, first + who.stop), part, piece)

    def finish(self) -> GroupStats:
        """The facts on all values. Raises ``ValueError`` if some were not added."""
        if (self._seen != self._count).any():
            raise ValueError(f"{self._seen.tolist()} of {self._count} values were added")
        filled = np.where(self._finite, self._filled, 0)
        norms = np.sqrt(np.where(self._finite, self._squares, 0.0))
        if self._fold is None:
            inner, shared = _exact_pairs(self._whole, self._finite)
            cosines: Pairs = _cosines(inner, norms)
            raw: Pairs = shared / np.maximum(np.minimum.outer(filled, filled), 1)
        else:
            cosines, alike = (_sketched_cosines(side, self._finite) for side in (self._values, self._places))
            raw = _shares(alike, filled)
        error = 0.0 if self._fold is None else self._values.shape[1] ** -0.5
        overlaps = _beyond_chance(raw, filled, self._count)
        return GroupStats(self._count, self._finite.copy(), filled, norms, cosines, overlaps, error)

    def _add(self, who: slice, part: slice, piece: F32) -> None:
        found = np.flatnonzero(piece != 0)
        per_member = np.diff(np.searchsorted(found, np.arange(0, piece.size + 1, piece.shape[1])))
        rows = np.repeat(np.arange(len(piece)), per_member)
        values = piece.reshape(-1)[found].astype(np.float64)
        whole = np.isfinite(values)
        if not whole.all():
            self._finite[who.start + np.unique(rows[~whole])] = False
            values[~whole] = 0.0
        self._filled[who] += per_member
        self._squares[who] += np.bincount(rows, values * values, minlength=len(piece))
        if self._fold is None:
            self._whole[who, part] = piece
            return
        span = part.start // SPAN
        offsets = found - rows * piece.shape[1] + (part.start - span * SPAN)
        buckets, signs = self._fold.places(span, offsets)
        for side, weights in ((self._values, values * signs), (self._places, signs)):
            width = side.shape[1]
            cells = rows * width + (buckets & (width - 1))
            side[who] += np.bincount(cells, weights, minlength=len(piece) * width).reshape(len(piece), width)


def _pieces(members: int, start: int, width: int) -> Iterator[tuple[slice, slice]]:
    """Cuts a block at the sketch's spans, and into runs of members whose values fit the scratch memory."""
    end = start + width
    while start < end:
        stop = min(end, (start // SPAN + 1) * SPAN)
        step = max(1, _PIECE // (stop - start))
        yield from ((slice(k, min(k + step, members)), slice(start, stop)) for k in range(0, members, step))
        start = stop


def _exact_pairs(whole: F32, finite: Bool) -> tuple[F64, F64]:
    """Inner products, and numbers of shared positions."""
    inner, shared = (np.zeros((len(whole), len(whole)), dtype=np.float64) for _ in range(2))
    step = max(1, (1 << 22) // max(1, len(whole)))
    for start in range(0, whole.shape[1], step):
        block = np.where(finite[:, None], whole[:, start : start + step], 0).astype(np.float64)
        inner += block @ block.T
        # Sums of ones below 2^24 are exact in float32, which is twice as fast.
        present = (block != 0).astype(np.float32)
        shared += present @ present.T
    return inner, shared


def _cosines(inner: F64, norms: F64) -> F64:
    lengths = np.where(norms > 0, norms, 1.0)
    return np.clip(inner / lengths[:, None] / lengths[None, :], -1.0, 1.0)


def _sketched_cosines(side: F64, finite: Bool) -> F32:
    """Cosines of the sketches; float32 is finer than the sketch by far."""
    lengths = np.sqrt(np.einsum("ij,ij->i", side, side))
    factors = np.where(finite & (lengths > 0), 1.0 / np.where(lengths > 0, lengths, 1.0), 0.0)
    unit = (side * factors[:, None]).astype(np.float32)
    cosines: F32 = unit @ unit.T
    np.clip(cosines, -1, 1, out=cosines)
    np.fill_diagonal(cosines, factors > 0)
    return cosines


def _shares(alike: F32, filled: I64) -> F32:
    """What share of the smaller of two sets the other holds, from the sets' cosines, shared / √(size · size)."""
    sides = np.sqrt(np.maximum(filled, 1)).astype(np.float32)
    ratio = sides[:, None] / sides
    np.maximum(ratio, ratio.T, out=ratio)
    ratio *= alike
    return ratio


def _beyond_chance(shares: Pairs, filled: I64, count: int) -> Pairs:
    fills = (filled / max(count, 1)).astype(shares.dtype)
    larger = np.maximum.outer(fills, fills)
    shares -= larger
    shares /= np.maximum(1 - larger, 1 - _MAX_FILL)
    full: Bool = np.greater(fills, _MAX_FILL)
    shares[full], shares[:, full] = 0, 0
    if filled.max(initial=0) > _MAX_RATIO * filled.min(initial=count):
        uneven: Bool = np.greater(larger, _MAX_RATIO * np.minimum.outer(fills, fills))
        shares[uneven] = 0
    return shares
