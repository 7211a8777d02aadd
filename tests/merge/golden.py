"""Computes one digest per operation that machines must agree on; run as a script it prints them as JSON.

Inputs come from a counter hash in integers, not from a library's random generator, so that only the operation under
test can differ between processors and versions.
"""

from __future__ import annotations

import hashlib
import json

import numpy as np
from numpy._core._multiarray_umath import __cpu_features__

from common.codec.container import decode, encode
from common.codec.params import F32, CodecParams
from common.merge.mean import divisor_of, member_scale
from common.merge.outer import compress_update, outer_step
from tests.merge.means import weighted_mean

COUNT = 70 * 4096 + 1234
CODECS = {
    f"{kind}-{density}-{bits}": CodecParams(kind, density, bits)
    for kind, density, bits in [
        ("topk", 64, 8), ("topk", 64, 16), ("topk", 512, 16), ("topk", 1000, 8), ("topk", 1024, 16),
        ("topk", 4096, 8), ("topk", 4096, 16), ("bf16", 4096, 16),
    ]
}  # fmt: skip


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


def digests() -> dict[str, str]:
    deltas = [noise(seed) for seed in range(5)]
    weights = [3.0, 1.0, float(np.float32(0.1)), 12345.0, 7.0]
    clips = [1.0, float(np.float32(0.3)), 1.0, 1.0, float(np.float32(0.77))]
    scales = [member_scale(weight, clip) for weight, clip in zip(weights, clips, strict=True)]
    mean = weighted_mean(zip(scales, deltas, strict=True), divisor_of(weights))
    found = {"mean": digest(mean), "plain": digest(*outer_step(deltas[0], mean, None, 0.7, 0.0))}
    found["nesterov"] = digest(*outer_step(deltas[0], mean, deltas[1], 0.7, 0.9))
    for name, codec in CODECS.items():
        data = encode(deltas[2], codec)
        found[f"encode-{name}"] = digest(data)
        found[f"decode-{name}"] = digest(decode(data, expect=codec, count=COUNT))
        update = compress_update(mean, deltas[3], codec)
        found[f"update-{name}"] = digest(update.data, update.values, update.residual)
    return found


if __name__ == "__main__":
    enabled = [name for name, present in __cpu_features__.items() if present]
    print(json.dumps({**digests(), "features": enabled}))
