"""Where each tensor of a shard lies in the shard's one flat float32 vector.

Invariant: a shard's weights are one contiguous vector: its tensors, row-major, one after the other in the order of
their Hugging Face names. The weights hash is the SHA-256 of that vector's little-endian bytes. Deltas, residuals,
updates and momentum are vectors of the same length. Pure: numpy only.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from common.model.shards import ShardLayers, plan_shards
from common.spec import ModelSpec
from common.units import Sha256, sha256_hex

Vector = npt.NDArray[np.float32]
Shape = tuple[int, ...]

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
HEAD = "lm_head.weight"


@dataclass(frozen=True)
class TensorSlot:
    """One tensor's place in the vector, in elements."""

    name: str
    shape: Shape
    start: int

    @property
    def count(self) -> int:
        """Elements of the tensor."""
        return math.prod(self.shape)

    @property
    def end(self) -> int:
        """One past the tensor's last element."""
        return self.start + self.count


@dataclass(frozen=True)
class Layout:
    """A shard's tensors in name order, and the length of its vector."""

    slots: tuple[TensorSlot, ...]
    total: int

    @property
    def names(self) -> tuple[str, ...]:
        """Tensor names in the order of the vector."""
        return tuple(slot.name for slot in self.slots)

    def check(self, vector: Vector) -> Vector:
        """Return ``vector`` if it is a flat, contiguous float32 vector of this layout; raise ValueError otherwise."""
        if vector.dtype != np.float32 or vector.shape != (self.total,) or not vector.flags.c_contiguous:
            raise ValueError(f"expected {self.total} contiguous float32, not {vector.dtype} of shape {vector.shape}")
        return vector

    def views(self, vector: Vector) -> Iterator[tuple[str, npt.NDArray[np.float32]]]:
        """(name, tensor) pairs that share memory with ``vector``."""
        self.check(vector)
        for slot in self.slots:
            yield slot.name, vector[slot.start : slot.end].reshape(slot.shape)


def schema(spec: ModelSpec, shard: ShardLayers) -> dict[str, Shape]:
    """Name and shape of every tensor of a shard, in name order."""
    shapes: dict[str, Shape] = {}
    for index in shard.layers:
        shapes |= {f"model.layers.{index}.{name}": shape for name, shape in _layer_schema(spec).items()}
    if shard.has_embedding:
        shapes[EMBEDDING] = (spec.vocab_size, spec.hidden_size)
    if shard.has_head:
        shapes[FINAL_NORM] = (spec.hidden_size,)
        if not spec.tied_head:
            shapes[HEAD] = (spec.vocab_size, spec.hidden_size)
    return dict(sorted(shapes.items()))


def layout_of(spec: ModelSpec, shard: ShardLayers) -> Layout:
    """The layout of one shard."""
    return layout_from_shapes(schema(spec, shard))


def layout_from_shapes(shapes: Mapping[str, Shape]) -> Layout:
    """Lay tensors out in name order."""
    slots: list[TensorSlot] = []
    start = 0
    for name, shape in sorted(shapes.items()):
        slots.append(TensorSlot(name, shape, start))
        start = slots[-1].end
    return Layout(tuple(slots), start)


def run_layouts(spec: ModelSpec, num_shards: int) -> tuple[Layout, ...]:
    """The layouts of all shards of a run, by shard id."""
    return tuple(layout_of(spec, shard) for shard in plan_shards(spec, num_shards))


def weights_hash(vector: Vector) -> Sha256:
    """SHA-256 of the little-endian bytes of a flat vector."""
    if vector.dtype != np.float32 or vector.ndim != 1:
        raise ValueError(f"a weights hash is taken of a flat float32 vector, not of {vector.dtype} {vector.shape}")
    return sha256_hex(little_endian_bytes(vector))


def little_endian_bytes(vector: Vector) -> memoryview:
    """The vector's bytes as they are stored and hashed; shares memory with it where the machine is little-endian."""
    stored = np.ascontiguousarray(vector if sys.byteorder == "little" else vector.astype("<f4"))
    return stored.view(np.uint8).data


def _layer_schema(spec: ModelSpec) -> dict[str, Shape]:
    hidden = spec.hidden_size
    kv_size = hidden // spec.num_heads * spec.num_kv_heads
    return {
        "input_layernorm.weight": (hidden,),
        "mlp.down_proj.weight": (hidden, spec.ffn_size),
        "mlp.gate_proj.weight": (spec.ffn_size, hidden),
        "mlp.up_proj.weight": (spec.ffn_size, hidden),
        "post_attention_layernorm.weight": (hidden,),
        "self_attn.k_proj.weight": (kv_size, hidden),
        "self_attn.o_proj.weight": (hidden, hidden),
        "self_attn.q_proj.weight": (hidden, hidden),
        "self_attn.v_proj.weight": (kv_size, hidden),
    }
