"""Revision 0: weights that anyone can make again, bit for bit.

Each tensor is drawn from a Philox stream keyed by SHA-256 of (seed, tensor name), so a shard's weights do not depend
on the number of shards. Matrices are uniform with the spec's standard deviation: 24 random bits, one exact conversion
and one float32 product, which every machine rounds alike (a library's normal numbers differ between CPU kernels).
Norm weights start at one. Projections that write into the residual stream are scaled by 1/sqrt(2·layers), as in GPT-2.
"""

from __future__ import annotations

import hashlib
import math

import numpy as np
import numpy.typing as npt

from common.model.layout import Layout, Shape, Vector, layout_of
from common.model.shards import ShardLayers
from common.spec import ModelSpec

BLOCK = 1 << 22
RESIDUAL_WRITERS = ("self_attn.o_proj.weight", "mlp.down_proj.weight")


def init_vector(spec: ModelSpec, shard: ShardLayers) -> Vector:
    """The flat weights of a shard at revision 0."""
    layout: Layout = layout_of(spec, shard)
    vector = np.empty(layout.total, dtype=np.float32)
    for name, tensor in layout.views(vector):
        _fill(spec, name, tensor.shape, tensor.reshape(-1))
    return vector


def _fill(spec: ModelSpec, name: str, shape: Shape, out: Vector) -> None:
    if len(shape) == 1:
        out[:] = 1.0
        return
    std = spec.init_std / math.sqrt(2 * spec.num_layers) if name.endswith(RESIDUAL_WRITERS) else spec.init_std
    scale = np.float32(std * math.sqrt(3.0) / (1 << 23))
    generator = np.random.Philox(key=_key(spec.init_seed, name))
    for start in range(0, out.size, BLOCK):
        block = out[start : start + BLOCK]
        block[:] = _centred_24_bits(generator, block.size) * scale


def _centred_24_bits(generator: np.random.Philox, count: int) -> npt.NDArray[np.float32]:
    """Whole numbers between −2^23 and 2^23, exact in float32."""
    raw: npt.NDArray[np.uint64] = generator.random_raw(count)
    return ((raw >> np.uint64(40)).astype(np.int64) - (1 << 23)).astype(np.float32)


def _key(seed: int, name: str) -> int:
    digest = hashlib.sha256(f"brigade/1/init\n{seed}\n{name}".encode()).digest()
    return int.from_bytes(digest[:16], "little")
