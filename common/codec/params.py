"""What a run spec fixes about the codec, and the sizes that follow from it.

Invariant: everything about the size of an encoded vector follows from ``(count, CodecParams)``, so a receiver knows
it before the first byte arrives.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from common.spec import CodecSpec

F32: TypeAlias = npt.NDArray[np.float32]
F64: TypeAlias = npt.NDArray[np.float64]
U8: TypeAlias = npt.NDArray[np.uint8]
U32: TypeAlias = npt.NDArray[np.uint32]
U16: TypeAlias = npt.NDArray[np.uint16]
I64: TypeAlias = npt.NDArray[np.int64]
Bool: TypeAlias = npt.NDArray[np.bool_]

CHUNK = 4096  # values per chunk: one record each, and the grid on which partitions are cut

Kind = Literal["topk", "bf16"]


@dataclass(frozen=True)
class CodecParams:
    """One codec with its settings. Contradictory settings raise ``ValueError``."""

    kind: Kind = "topk"
    """``topk``: the largest of each chunk with 2-bit values. ``bf16``: every value, rounded to bfloat16."""

    density: int = CHUNK
    """Values sent of each chunk of 4,096, 1..4096. ``bf16`` sends all."""

    magnitude_bits: int = 16
    """Size of each of a ``topk`` record's two magnitudes: 16 (bfloat16) or 8 (minifloat relative to the header)."""

    def __post_init__(self) -> None:
        if self.kind not in ("topk", "bf16"):
            raise ValueError(f"codec kind must be topk or bf16, not {self.kind!r}")
        if not 1 <= self.density <= CHUNK:
            raise ValueError(f"density must be 1..{CHUNK} values of each {CHUNK}, not {self.density}")
        if self.magnitude_bits not in (8, 16):
            raise ValueError(f"magnitude_bits must be 8 or 16, not {self.magnitude_bits}")
        if self.kind == "bf16" and (self.density, self.magnitude_bits) != (CHUNK, 16):
            raise ValueError(f"bf16 sends all {CHUNK} values in 16 bits; leave density and magnitude_bits out")


def chunk_count(count: int) -> int:
    """Chunks of a vector of ``count`` values; the last one may be partly filled."""
    return -(-count // CHUNK)


def delta_params(codec: CodecSpec, base_revision: int) -> CodecParams:
    """The codec of a delta on ``base_revision``."""
    return _params(codec, codec.delta_density(base_revision))


def update_params(codec: CodecSpec, base_revision: int) -> CodecParams:
    """The codec of the update of ``base_revision``."""
    return _params(codec, codec.update_density(base_revision))


def _params(codec: CodecSpec, density: int) -> CodecParams:
    return CodecParams("bf16") if codec.kind == "bf16" else CodecParams("topk", density, codec.magnitude_bits)
