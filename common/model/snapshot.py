"""One shard's snapshot: weights, and where a run keeps them the outer momentum and the update's residual.

The bytes are a safetensors file, with the weights under their Hugging Face names and the outer state as flat vectors.
Invariant: a shard's state has exactly one encoding, so the reader is total by construction: it accepts bytes that
start with one of the four headers that the spec allows, have exactly that header's size, and hold only finite values.
Everything else is ``Rejected('bad_snapshot')``. No memory beyond the given buffer is needed but one block.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from common.errors import Rejected
from common.model.layout import Layout, Shape, Vector, layout_of, little_endian_bytes
from common.model.safetensors import LENGTH_BYTES, header_bytes
from common.model.shards import ShardLayers
from common.spec import ModelSpec

MOMENTUM = "outer.momentum"
RESIDUAL = "outer.residual"
CHECK_BLOCK = 1 << 20
PRESENCES = ((False, False), (True, False), (False, True), (True, True))


@dataclass(frozen=True)
class Snapshot:
    """A shard's state at a revision; all vectors have the layout's length."""

    weights: Vector
    momentum: Vector | None = None
    """v of the outer Nesterov step; None where the run has none."""
    residual: Vector | None = None
    """What the compressed updates have left out so far; None where the codec leaves nothing out."""

    @property
    def vectors(self) -> tuple[Vector, ...]:
        """The vectors there are, in the order of the file."""
        return tuple(v for v in (self.weights, self.momentum, self.residual) if v is not None)


def snapshot_parts(spec: ModelSpec, shard: ShardLayers, snapshot: Snapshot) -> Iterator[bytes | memoryview]:
    """The snapshot's bytes as header and vectors, without copying them. Raises ValueError for a misfit vector."""
    layout = layout_of(spec, shard)
    for vector in snapshot.vectors:
        layout.check(vector)
    yield _header(layout, snapshot.momentum is not None, snapshot.residual is not None)
    for vector in snapshot.vectors:
        yield little_endian_bytes(vector)


def encode_snapshot(spec: ModelSpec, shard: ShardLayers, snapshot: Snapshot) -> bytes:
    """The snapshot's bytes."""
    return b"".join(snapshot_parts(spec, shard, snapshot))


def snapshot_size_bytes(spec: ModelSpec, shard: ShardLayers) -> int:
    """The largest size a snapshot of this shard may have; a download needs no more."""
    layout = layout_of(spec, shard)
    return len(_header(layout, True, True)) + 3 * 4 * layout.total


def decode_snapshot(spec: ModelSpec, shard: ShardLayers, data: bytes | memoryview) -> Snapshot:
    """Read foreign bytes. Raises ``Rejected('bad_snapshot')``; the vectors share memory with ``data``, read-only."""
    layout = layout_of(spec, shard)
    view = memoryview(data).cast("B").toreadonly()
    for momentum, residual in PRESENCES:
        header = _header(layout, momentum, residual)
        if bytes(view[: len(header)]) == header:
            vectors = _vectors(view[len(header) :], layout, 1 + momentum + residual)
            return Snapshot(vectors[0], vectors[1] if momentum else None, vectors[-1] if residual else None)
    raise Rejected("bad_snapshot", _why_no_header(view, shard))


def weights_start_bytes(spec: ModelSpec, shard: ShardLayers) -> int:
    """Size of the start of a snapshot without momentum that holds the weights and all before them."""
    layout = layout_of(spec, shard)
    return len(_header(layout, False, True)) + 4 * layout.total


def decode_weights(spec: ModelSpec, shard: ShardLayers, start: bytes | memoryview) -> Vector:
    """The weights from the first ``weights_start_bytes`` of a snapshot with a residual and no momentum.

    Raises ``Rejected('bad_snapshot')``; the vector shares memory with ``start``, read-only.
    """
    layout = layout_of(spec, shard)
    view, header = memoryview(start).cast("B").toreadonly(), _header(layout, False, True)
    if bytes(view[: len(header)]) != header:
        raise Rejected("bad_snapshot", _why_no_header(view, shard))
    return _vectors(view[len(header) :], layout, 1)[0]


def _header(layout: Layout, momentum: bool, residual: bool) -> bytes:
    shapes: dict[str, Shape] = {slot.name: slot.shape for slot in layout.slots}
    if momentum:
        shapes[MOMENTUM] = (layout.total,)
    if residual:
        shapes[RESIDUAL] = (layout.total,)
    return header_bytes(shapes)


def _vectors(body: memoryview, layout: Layout, count: int) -> list[Vector]:
    size = 4 * layout.total
    if len(body) != count * size:
        raise Rejected("bad_snapshot", f"{len(body)} bytes of tensors where the header promises {count * size}")
    vectors = [_read_vector(body[i * size : (i + 1) * size]) for i in range(count)]
    if not all(is_finite(vector) for vector in vectors):
        raise Rejected("bad_snapshot", "a value is not finite")
    return vectors


def _read_vector(part: memoryview) -> Vector:
    stored = np.frombuffer(part, dtype="<f4")
    return stored if sys.byteorder == "little" else stored.astype(np.float32)


def is_finite(vector: Vector) -> bool:
    """Whether no value is NaN or infinite, looked at in blocks."""
    blocks = (vector[start : start + CHECK_BLOCK] for start in range(0, vector.size, CHECK_BLOCK))
    return all(bool(np.isfinite(block).all()) for block in blocks)


def _why_no_header(view: memoryview, shard: ShardLayers) -> str:
    if len(view) < LENGTH_BYTES:
        return f"{len(view)} bytes are no safetensors file"
    return f"the header does not list exactly the float32 tensors of shard {shard.shard} of this run's model"
