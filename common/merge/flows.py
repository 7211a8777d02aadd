"""Mass that leaves a miner's account, by name, without a vector of its own.

Every flow is a sum of factors times vectors that somebody holds anyway (the sent delta, the old residual, the target),
so that accounting for 1 B parameters costs no memory; the values themselves are for tests and the simulator.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields

import numpy as np

from common.codec.params import F32, F64
from common.merge.mean import BLOCK_VALUES


@dataclass(frozen=True)
class Merged:
    """The plan's numbers of an accepted member."""

    tokens: int
    """Validated tokens."""
    weight: float
    """What they count for."""
    scale: float
    """Weight × clip factor."""

    def __post_init__(self) -> None:
        fine = math.isfinite(self.weight) and math.isfinite(self.scale)
        if not (fine and self.tokens > 0 and self.weight > 0 and self.scale >= 0):
            raise ValueError(f"no member is accepted with {self}")

    @property
    def parts(self) -> tuple[float, float, float]:
        """Shares of the delta that were merged, clipped away and weighed down; their sum is 1.

        The whole is the weight that the tokens have as float32. The third is below 0 if a plan gives more than that.
        """
        whole = float(np.float32(self.tokens))
        return self.scale / whole, (self.weight - self.scale) / whole, (whole - self.weight) / whole


@dataclass(frozen=True)
class Flow:
    """Some mass that left the account: Σ factor × vector, of vectors that exist anyway. Computed only when asked."""

    count: int
    parts: tuple[tuple[float, F32], ...] = ()

    def plus(self, factor: float, vector: F32) -> Flow:
        """This and ``factor · vector``."""
        return Flow(self.count, (*self.parts, (factor, vector))) if factor else self

    def values(self) -> F64:
        """The mass, coordinate by coordinate, in float64."""
        blocks = list(self._blocks())
        return np.concatenate(blocks) if blocks else np.zeros(0)

    def norm(self) -> float:
        """L2 norm, in bounded memory."""
        if len(self.parts) == 1:
            ((factor, vector),) = self.parts
            return abs(factor) * norm(vector)
        return math.sqrt(sum(_square_sum(block) for block in self._blocks())) if self.parts else 0.0

    def _blocks(self) -> Iterator[F64]:
        for start in range(0, self.count, BLOCK_VALUES):
            block = np.zeros(min(BLOCK_VALUES, self.count - start))
            for factor, vector in self.parts:
                block += factor * vector[start : start + BLOCK_VALUES].astype(np.float64)
            yield block


@dataclass(frozen=True)
class Flows:
    """Where mass went in one settlement. It refers to the old vectors: let it go when it has been read."""

    merged: Flow
    clipped: Flow
    weighed_down: Flow
    """By the weight of what is late, by caps per miner and group, by the cap for newcomers."""
    decayed: Flow
    """``(1 − β) · residual``."""
    rejected: Flow
    """What the cap after a rejection dropped."""
    rolled_back: Flow

    def named(self) -> Iterator[tuple[str, Flow]]:
        """Each flow with its name."""
        return ((field.name, getattr(self, field.name)) for field in fields(self))


def norm(values: F32) -> float:
    """L2 norm in float64; for information and caps, not for anything that machines must agree on."""
    starts = range(0, len(values), BLOCK_VALUES)
    return math.sqrt(sum(_square_sum(values[i : i + BLOCK_VALUES].astype(np.float64)) for i in starts))


def _square_sum(block: F64) -> float:
    """Of a block that is overwritten. No BLAS, whose threads cost more than they bring on blocks of this size."""
    block *= block
    return float(np.add.reduce(block))
