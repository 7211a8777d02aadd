"""Dense codec: every value rounded to bfloat16, two bytes a value, little-endian.

Rounding is to nearest, ties to even, done on the float's bits, so that it can't differ between machines. A finite
value stays finite: what would round to infinity becomes the largest bfloat16.
"""

from __future__ import annotations

import numpy as np

from common.codec.params import F32, U8, U16
from common.codec.quant import MAX_BF16
from common.errors import Rejected

VALUE_BYTES = 2
_BLOCK = 1 << 20


def encode_dense(values: F32) -> bytes:
    """Two bytes for each value of a finite vector."""
    return b"".join(_round(values[i : i + _BLOCK]).tobytes() for i in range(0, len(values), _BLOCK))


def decode_dense(body: U8) -> F32:
    """The values of ``body``; raises ``Rejected("non_finite")``."""
    codes = body.view("<u2")
    if ((codes & 0x7FFF) > MAX_BF16).any():
        raise Rejected("non_finite", "a value is infinite or not a number")
    return (codes.astype(np.uint32) << 16).view(np.float32)


def _round(values: F32) -> U16:
    bits = values.view(np.uint32)
    even = (bits >> 16) & 1
    magnitude = ((bits & 0x7FFFFFFF) + 0x7FFF + even) >> 16
    codes = np.minimum(magnitude, MAX_BF16) | ((bits >> 16) & 0x8000)
    return np.asarray(codes, dtype="<u2")
