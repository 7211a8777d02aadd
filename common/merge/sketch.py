"""A seeded linear sketch: vectors folded into few buckets so that inner products stay, up to a known error.

Each coordinate goes to a random bucket with a random sign (Charikar, Chen, Farach-Colton 2002; "feature hashing",
Weinberger et al. 2009). For any two vectors, however they are made, the sketched inner product is right on average and
off by at most ``|x|·|y|·√(2/width)`` in standard deviation; the cosine of the two sketches by ``(1 − cos²)/√width``.
That holds for vectors chosen without knowledge of the seed: it must not be known before the deltas are handed in.

The table covers 2¹⁸ coordinates and is turned by a random amount and sign from one such span to the next, so that
its memory does not grow with the vector and a member's coordinates may be fed without the others'.
"""

from __future__ import annotations

import numpy as np

from common.codec.params import F64, I64

SPAN = 1 << 18


class Fold:
    """Maps coordinates of vectors of ``count`` values to ``width`` buckets, a power of two."""

    def __init__(self, count: int, width: int, seed: int) -> None:
        if width < 1 or width & (width - 1):
            raise ValueError(f"the number of buckets must be a power of two, not {width}")
        rng = np.random.default_rng(seed)
        size, spans = max(1, min(SPAN, count)), -(-count // SPAN)
        self._mask = width - 1
        self._buckets: I64 = rng.integers(0, width, size, dtype=np.int64)
        self._signs: F64 = rng.choice(np.array([-1.0, 1.0]), size)
        self._turns: I64 = rng.integers(0, width, spans, dtype=np.int64)
        self._flips: F64 = rng.choice(np.array([-1.0, 1.0]), spans)

    def places(self, span: int, offsets: I64) -> tuple[I64, F64]:
        """Buckets and signs of the coordinates ``span · SPAN + offsets``."""
        buckets = (self._buckets[offsets] + self._turns[span]) & self._mask
        return buckets, self._signs[offsets] * self._flips[span]
