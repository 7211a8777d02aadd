"""One pass over a round's deltas: norms, inner products and shared positions, from which every gate is computed.

Deltas are fed in blocks of coordinates, so memory is bounded by members × block. All cosines to leave-one-out means
follow from the matrix of inner products. Sums are float64 through BLAS: they may differ in the last bits between
machines, which does no harm because what the gates decide is fixed as exact bits in the plan.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from common.codec.params import F32, F64, I64, Bool

_BLOCK_ELEMENTS = 1 << 22


@dataclass(frozen=True)
class GroupStats:
    """Facts on n decoded deltas of ``count`` values, in the members' order."""

    count: int
    finite: Bool
    """Which deltas are free of infinities and NaN; the others count as zero everywhere else."""
    inner: F64
    """Inner products ``(n, n)``."""
    shared: I64
    """Positions at which both deltas are not zero ``(n, n)``; the diagonal counts each one's own."""

    @property
    def norms(self) -> F64:
        """L2 norms ``(n,)``."""
        return np.sqrt(np.diagonal(self.inner))

    @property
    def cosines(self) -> F64:
        """Cosines ``(n, n)``; 0 where a delta is zero."""
        norms = np.where(self.norms > 0, self.norms, 1.0)
        return np.clip(self.inner / norms[:, None] / norms[None, :], -1.0, 1.0)

    @property
    def overlaps(self) -> F64:
        """How far the positions of two deltas agree beyond chance ``(n, n)``: 1 for a copy, about 0 for strangers.

        The share of the smaller set, corrected for the fill of the larger one; 0 when that is above one half, where
        positions say nothing.
        """
        sizes = np.diagonal(self.shared).astype(np.float64)
        smaller, larger = np.minimum.outer(sizes, sizes), np.maximum.outer(sizes, sizes)
        fill = larger / max(self.count, 1)
        raw = self.shared / np.maximum(smaller, 1.0)
        return np.where(fill <= 0.5, (raw - fill) / np.maximum(1.0 - fill, 0.5), 0.0)


class GroupStatsBuilder:
    """Takes the deltas' coordinates block by block."""

    def __init__(self, members: int) -> None:
        self._members, self._count = members, 0
        self._finite = np.ones(members, dtype=np.bool_)
        self._inner = np.zeros((members, members), dtype=np.float64)
        self._shared = np.zeros((members, members), dtype=np.int64)

    def add(self, block: F32) -> None:
        """Adds coordinates ``(members, any number)``."""
        if block.ndim != 2 or len(block) != self._members:
            raise ValueError(f"a block of shape {block.shape} for {self._members} members")
        self._count += block.shape[1]
        step = max(1, _BLOCK_ELEMENTS // max(1, self._members))
        for start in range(0, block.shape[1], step):
            self._add(block[:, start : start + step])

    def finish(self) -> GroupStats:
        """The facts on everything that was added."""
        keep = self._finite[:, None] & self._finite[None, :]
        inner, shared = np.where(keep, self._inner, 0.0), np.where(keep, self._shared, 0)
        return GroupStats(self._count, self._finite.copy(), inner, shared)

    def _add(self, block: F32) -> None:
        finite: Bool = np.asarray(np.isfinite(block).all(axis=1))
        self._finite &= finite
        wide = np.where(finite[:, None], block, 0).astype(np.float64)
        self._inner += wide @ wide.T
        # Sums of ones below 2^24 are exact in float32, which is twice as fast.
        present = (wide != 0).astype(np.float32)
        self._shared += (present @ present.T).astype(np.int64)
