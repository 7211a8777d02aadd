"""The weighted mean of deltas, bit for bit the same wherever it is computed.

``mean = (0.0 + s₁·x₁ + s₂·x₂ + …) / divisor`` in float64, members in the plan's order, one rounding to float32.
A product of two float32 is exact in float64, so fused multiply-add does no harm. Elementwise only: no BLAS, no library
sum. Therefore a slice of the vectors gives the same bits as the whole, which is what lets partitions be reduced apart.

The divisor is the sum of the weights of *all* accepted members, whether or not they sent a coordinate (a lone sender
must not get full weight); the scale of a member is its weight times its clip factor.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable

import numpy as np

from common.codec.params import F32, F64

BLOCK_VALUES = 1 << 16  # half a MiB of float64: the scratch memory, whatever the vectors' length

_F32 = struct.Struct("<f")


class MeanAccumulator:
    """Takes members one after the other, so that only one delta need be in memory."""

    def __init__(self, count: int) -> None:
        self._sum: F64 = np.zeros(count, dtype=np.float64)
        self._term: F64 = np.empty(min(BLOCK_VALUES, count), dtype=np.float64)

    def add(self, scale: float, values: F32) -> None:
        """Adds ``scale · values``. ``scale`` must be a float32 (the plan's bits); ``ValueError`` otherwise."""
        if values.dtype != np.float32 or values.shape != self._sum.shape:
            raise ValueError(f"a member of {values.dtype} {values.shape} among float32 vectors of {self._sum.shape}")
        factor = exact_f32(scale)
        for start in range(0, len(values), BLOCK_VALUES):
            block = self._sum[start : start + BLOCK_VALUES]
            part = self._term[: len(block)]
            part[:] = values[start : start + BLOCK_VALUES]
            part *= factor
            block += part

    def finish(self, divisor: float) -> F32:
        """The mean as float32. Raises ``ValueError`` for a divisor that is not positive or a mean past float32."""
        if not 0 < divisor < float("inf"):
            raise ValueError(f"the divisor is the sum of the accepted weights and must be positive, not {divisor}")
        out = np.empty(len(self._sum), dtype=np.float32)
        with np.errstate(over="ignore"):
            for start in range(0, len(out), BLOCK_VALUES):
                out[start : start + BLOCK_VALUES] = self._sum[start : start + BLOCK_VALUES] / np.float64(divisor)
        require_finite(out, "the mean")
        return out


def divisor_of(weights: Iterable[float]) -> float:
    """The sum in float64, in the members' order, of the weights of all accepted members (each a float32)."""
    total = 0.0
    for weight in weights:
        total += exact_f32(weight)
    return total


def member_scale(weight: float, clip: float) -> float:
    """``weight · clip`` rounded once to float32: what the plan fixes as the member's scale."""
    return float(np.float32(exact_f32(weight)) * np.float32(exact_f32(clip)))


def exact_f32(value: float) -> float:
    """``value`` unchanged; ``ValueError`` unless it is finite and exactly a float32."""
    try:
        exact = _F32.unpack(_F32.pack(value))[0] == value and math.isfinite(value)
    except OverflowError:
        exact = False
    if not exact:
        raise ValueError(f"{value!r} is not a finite float32; round it before it is fixed in a plan")
    return float(value)


def require_finite(values: F32, what: str) -> None:
    """Raises ``ValueError`` naming how many values are infinite or NaN, if any is."""
    bad = sum(
        int(np.count_nonzero(~np.isfinite(values[i : i + BLOCK_VALUES]))) for i in range(0, len(values), BLOCK_VALUES)
    )
    if bad:
        raise ValueError(f"{what} has {bad} of {len(values)} values that are not finite; the base must be kept")
