"""Inputs and digests for what machines must agree on.

Inputs come from a counter hash in integers, not from a library's random generator, so that only the operation under
test can differ between processors and versions.
"""

from __future__ import annotations

import hashlib

import numpy as np

from common.codec.params import F32

COUNT = 70 * 4096 + 1234


def noise(seed: int) -> F32:
    """Values of many magnitudes, both signs, ties, zeros and subnormals among them."""
    state = np.arange(COUNT, dtype=np.uint64) + np.uint64(seed << 32)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        state = (state ^ (state >> np.uint64(shift))) * np.uint64(factor)
    mantissa, spread = (state & np.uint64(0x807FFFFF)).astype(np.uint32), (state >> np.uint64(40)).astype(np.uint32)
    # Exponents fall off geometrically from 2^-7, as a delta's do; one value in 64 is made an outlier of its own.
    trailing = np.zeros(COUNT, dtype=np.uint32)
    for bit in range(16):
        trailing += (spread & ((1 << (bit + 1)) - 1)) == 0
    values = mantissa | ((120 - trailing) << 23).astype(np.uint32)
    values[::1000] &= 0x807FFFFF
    values[5 * 4096 : 6 * 4096] = 0
    values[6 * 4096 : 7 * 4096] &= 0xFF800000
    return values.view(np.float32)


def digest(*arrays: F32 | bytes | None) -> str:
    total = hashlib.sha256()
    for array in arrays:
        if array is not None:
            total.update(array if isinstance(array, bytes) else array.astype("<f4").tobytes())
    return total.hexdigest()[:16]
