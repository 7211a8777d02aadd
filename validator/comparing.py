"""The figures on which the gates compare a shard's deltas: each delta is read and decoded once, whatever its base.

Deltas on different bases have different densities, so each is decoded as its own base prescribes. Long ones stream
through one at a time, so that memory holds one of them; short ones are decoded many at once, which is ten times faster.
The seed of the comparison's sketch is the hash of all receipts: nobody knows it while anything can still be handed in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from common.codec.container import decode_stream
from common.codec.many import decode_many
from common.codec.params import F32, CodecParams
from common.errors import Rejected
from common.merge.group import GroupStats, GroupStatsBuilder
from common.records import Receipt
from common.units import sha256_hex

BATCH_VALUES = 1 << 20
"""Values that are decoded at once."""


@dataclass(frozen=True)
class Source:
    """One delta: how it is coded, and where its bytes come from."""

    params: CodecParams
    read: Callable[[], bytes]
    """Raises ``Rejected`` for bytes that are not what was announced, ``Retryable`` on outages."""


@dataclass(frozen=True)
class Unreadable:
    """Which source can't be compared, and why: the others have to be compared without it."""

    index: int
    refusal: Rejected


def compare(sources: Sequence[Source], count: int, seed: int) -> GroupStats | Unreadable:
    """Figures on deltas of ``count`` values, in their order; or the first that can't be read or decoded."""
    builder = GroupStatsBuilder(len(sources), count, seed)
    for first, batch in _batches(sources, max(1, BATCH_VALUES // max(1, count))):
        found = _one(builder, first, batch[0], count) if len(batch) == 1 else _many(builder, first, batch, count)
        if found is not None:
            return found
    return builder.finish()


def compare_values(values: Sequence[F32], count: int, seed: int) -> GroupStats:
    """The same figures on deltas of ``count`` values that were decoded already."""
    builder = GroupStatsBuilder(len(values), count, seed)
    if values:
        builder.add(0, 0, np.stack(values))
    return builder.finish()


def seed_of(receipts: Sequence[Receipt]) -> int:
    """From what all receipts say, in whatever order they come."""
    told = sorted(f"{receipt.manifest_sha256} {receipt.received_ms}" for receipt in receipts)
    return int(sha256_hex("\n".join(told).encode())[:15], 16)


def _batches(sources: Sequence[Source], most: int) -> Iterator[tuple[int, list[Source]]]:
    """Neighbours that are coded alike, at most so many at once, each with the place of the first."""
    place = 0
    for _, alike in groupby(sources, key=lambda source: source.params):
        group = list(alike)
        for start in range(0, len(group), most):
            yield place + start, group[start : start + most]
        place += len(group)


def _one(builder: GroupStatsBuilder, first: int, source: Source, count: int) -> Unreadable | None:
    try:
        for start, values in decode_stream(source.read(), expect=source.params, count=count):
            builder.add(first, start, values[None, :])
    except Rejected as refusal:
        return Unreadable(first, refusal)
    return None


def _many(builder: GroupStatsBuilder, first: int, batch: Sequence[Source], count: int) -> Unreadable | None:
    bodies = []
    for i, source in enumerate(batch):
        try:
            bodies.append(source.read())
        except Rejected as refusal:
            return Unreadable(first + i, refusal)
    decoded = decode_many(bodies, expect=batch[0].params, count=count)
    if decoded.refused:
        worst = min(decoded.refused)
        return Unreadable(first + worst, decoded.refused[worst])
    builder.add(first, 0, decoded.values)
    return None
