"""Two magnitudes for a chunk: chosen by exact 2-means, written in 8 or 16 bits.

The values sent become ±low or ±high. In one dimension the best two clusters are a split of the sorted magnitudes,
so all splits are tried; the best one maximises ``(sum below)²/n + (sum above)²/m``.

Determinism: magnitudes enter as integers (the float's bits), are brought to fixed point relative to the chunk's
largest, and summed exactly (24-bit integers, at most 4,096 of them, in float64). What follows are single IEEE
operations on float64, elementwise, and the first of equal maxima. Nothing depends on SIMD width, threads or BLAS.

Written magnitudes: 16 bits are a bfloat16 without sign. 8 bits are 4 bits of exponent and 4 of mantissa below
``2**(scale + 1)``, with ``scale`` in the container's header; code 0 is zero. Both codes grow with the value.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from common.codec.params import F64, I64, U32, Bool

MAX_BF16 = 0x7F7F  # largest finite bfloat16
MIN_SCALE, MAX_SCALE = -100, 127  # keeps every 8-bit magnitude a normal, finite float32
_MANTISSA = 4
_OCTAVES = 16
_FLOOR_SCALE = MIN_SCALE + _OCTAVES - 1  # lowest scale before ``rebased``, which lowers it by 15 at most


@dataclass(frozen=True)
class Levels:
    """The two magnitudes of each of ``rows`` chunks, before rounding."""

    low: F64
    high: F64
    threshold: U32
    """Bits of the smallest magnitude in the upper cluster: values at or above it become ``high``."""
    low_is_zero: Bool
    """Whether the lower cluster holds nothing but zeros."""


def two_means(magnitudes: U32) -> Levels:
    """Best two levels for each row of float32 magnitudes, given as bits ``(rows, n)`` without sign, n ≥ 1."""
    ordered = np.sort(magnitudes, axis=1)
    fixed, exponent = _fixed_point(ordered)
    below = np.cumsum(fixed, axis=1, dtype=np.float64)
    total = below[:, -1]
    n = ordered.shape[1]
    if n == 1:
        value = np.ldexp(total, exponent)
        return Levels(value, value, ordered[:, 0], ordered[:, 0] == 0)
    rows = np.arange(len(ordered))
    split = _best_split(below)
    under, over = below[rows, split], total - below[rows, split]
    low, high = under / (split + 1), over / (n - 1 - split)
    return Levels(
        np.ldexp(low, exponent), np.ldexp(high, exponent), ordered[rows, split + 1], ordered[rows, split] == 0
    )


def _fixed_point(ordered: U32) -> tuple[U32, I64]:
    """Integers below 2²⁴ and the power of two that scales each row back; finer bits than the row's are cut off."""
    exponents = np.maximum(ordered >> 23, 1)
    mantissas = (ordered & 0x7FFFFF) | ((ordered >= 0x800000).astype(np.uint32) << 23)
    top = exponents[:, -1:]
    return mantissas >> np.minimum(top - exponents, 31), top[:, 0].astype(np.int64) - 150


def _best_split(below: F64) -> I64:
    """Last position of the lower cluster in each row of exact prefix sums ``(rows, n)``, n ≥ 2."""
    n = below.shape[1]
    sizes = np.arange(1, n, dtype=np.float64)
    above = below[:, -1:] - below[:, :-1]
    above *= above
    above /= n - sizes
    score = below[:, :-1] * below[:, :-1]
    score /= sizes
    score += above
    return np.asarray(np.argmax(score, axis=1), dtype=np.int64)


def scales_of(largest_bits: U32) -> I64:
    """Scales for 8-bit magnitudes of vectors whose largest magnitudes have these float32 bits."""
    return np.maximum((largest_bits >> 23).astype(np.int64) - 127, _FLOOR_SCALE)


def to_codes(values: F64, magnitude_bits: int, scales: I64) -> I64:
    """Codes of non-negative ``values``, each with its scale: nearest, ties to even; too large is the largest, too
    small is 0."""
    fraction, exponent = np.frexp(values)
    octave = exponent.astype(np.int64) - 1
    if magnitude_bits == 8:
        codes = ((octave - scales + _OCTAVES - 1) << _MANTISSA) + _steps(fraction, _MANTISSA)
        return np.where(values > 0, np.clip(codes, 0, 255), 0).astype(np.int64)
    normal = ((octave + 127) << 7) + _steps(fraction, 7)
    subnormal = np.rint(np.ldexp(np.minimum(values, 2.0**-126), 133)).astype(np.int64)
    codes = np.where(octave < -126, subnormal, normal)
    return np.where(values > 0, np.minimum(codes, MAX_BF16), 0).astype(np.int64)


def _steps(fraction: F64, mantissa_bits: int) -> I64:
    """Mantissa 0..2**bits of fractions in [0.5, 1); the upper end carries into the exponent by plain addition."""
    return np.rint(np.ldexp(fraction, mantissa_bits + 1)).astype(np.int64) - (1 << mantissa_bits)


def rebased(codes: I64, scales: I64) -> tuple[I64, I64]:
    """8-bit codes ``(members, chunks, 2)`` and the scales at which each member's largest lies in the top octave.

    A member of nothing but zeros has scale 0.
    """
    largest = codes.max(axis=(1, 2), initial=0)
    spare = np.where(largest > 0, _OCTAVES - 1 - (largest >> _MANTISSA), 0)
    lifted = np.where(codes > 0, codes + (spare << _MANTISSA)[:, None, None], 0)
    return lifted, np.where(largest > 0, scales - spare, 0)


def is_based(largest: int, scale: int) -> bool:
    """Whether ``scale`` is the one that ``rebased`` gives when the largest code is ``largest``."""
    return scale == 0 if largest == 0 else largest >> _MANTISSA == _OCTAVES - 1


def from_codes(codes: I64, magnitude_bits: int, scales: I64) -> U32:
    """float32 bits of the magnitudes, each with its scale; exact."""
    if magnitude_bits == 16:
        return codes.astype(np.uint32) << np.uint32(16)
    biased = (codes >> _MANTISSA) + (scales - _OCTAVES + 1 + 127)
    bits = (biased << 23) | ((codes & ((1 << _MANTISSA) - 1)) << (23 - _MANTISSA))
    return np.asarray(np.where(codes > 0, bits, 0), dtype=np.uint32)
