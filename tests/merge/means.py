"""The weighted mean of members that are all at hand."""

from __future__ import annotations

from collections.abc import Iterable

from common.codec.params import F32
from common.merge.mean import MeanAccumulator


def weighted_mean(members: Iterable[tuple[float, F32]], divisor: float) -> F32:
    """The mean of ``(scale, values)`` pairs in their order; at least one."""
    pairs = list(members)
    accumulator = MeanAccumulator(len(pairs[0][1]))
    for scale, values in pairs:
        accumulator.add(scale, values)
    return accumulator.finish(divisor)
