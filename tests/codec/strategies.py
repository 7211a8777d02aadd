"""Vectors and codecs that the codec's tests draw from."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from common.codec.params import F32, CodecParams

DENSITIES = (1, 3, 64, 100, 512, 1023, 1024, 3000, 4095, 4096)
SPARSE = [CodecParams("topk", density, bits) for density in DENSITIES for bits in (8, 16)]
ALL_PARAMS = [*SPARSE, CodecParams("bf16")]

params = st.sampled_from(ALL_PARAMS)
counts = st.sampled_from((1, 2, 63, 64, 65, 4095, 4096, 4097, 8192, 9000, 64 * 4096 + 5))


def vector(seed: int, count: int, shape: str) -> F32:
    """A finite vector: the named distributions cover what training makes and what an attacker would."""
    rng = np.random.default_rng(seed)
    if shape == "zeros":
        return np.zeros(count, dtype=np.float32)
    if shape == "bits":
        bits = rng.integers(0, 1 << 32, count, dtype=np.uint32)
        return np.where((bits & 0x7F800000) == 0x7F800000, bits & 0x807FFFFF, bits).astype(np.uint32).view(np.float32)
    values = rng.standard_normal(count).astype(np.float32)
    scale = {"normal": 1e-3, "huge": 1e37, "subnormal": 1e-42, "ties": 1.0, "few": 1.0, "negative_zero": -0.0}[shape]
    if shape == "ties":
        values = np.round(values)
    if shape == "few":
        values[rng.random(count) > 0.01] = 0
    return (values * np.float32(scale)).astype(np.float32)


shapes = st.sampled_from(("zeros", "bits", "normal", "huge", "subnormal", "ties", "few", "negative_zero"))
vectors = st.builds(vector, st.integers(0, 2**32 - 1), counts, shapes)
