"""One partition of a shard's mean, from just the byte range of every accepted delta: bit for bit that slice of the
whole mean, since the mean is elementwise (``mean.py``).

An owner proves what it has read by one number, ``inputs_sha256``: over the header and the hash of the byte range of
each accepted member, in the plan's order. The leader makes it of the manifests and of the deltas that it has read, so
an owner notices what was damaged on the way without fetching every miner's manifest, which would grow with their
number; and it stands in the owner's signed word beside the hash of the mean, so that nobody can be blamed for a mean
of what somebody else served it. Pure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from common.codec.container import HEADER_BYTES, chunks_of, decode_range, partition_chunks, range_of, read_header
from common.codec.params import CHUNK, F32, CodecParams, delta_params
from common.errors import Rejected
from common.merge.mean import MeanAccumulator
from common.model.layout import little_endian_bytes
from common.runlog.entries import PlanMember, RoundFrozen
from common.runlog.recompute import accepted_members, divisor
from common.spec import RunSpec
from common.units import Sha256, ShardId, sha256_hex

MEAN_BYTES = 4
"""Of one value of a mean: float32, little-endian."""
Ranges = Callable[[int, int], tuple[bytes, bytes | memoryview]]
"""One delta's header, and its bytes [start, end)."""


@dataclass(frozen=True)
class Slice:
    """Where a partition lies in a shard of ``count`` values."""

    count: int
    chunks: tuple[int, int]

    @property
    def values(self) -> tuple[int, int]:
        """Values [start, end) of the flat vector."""
        start, end = (min(at * CHUNK, self.count) for at in self.chunks)
        return start, end

    @property
    def mean_bytes(self) -> int:
        """Size of its mean."""
        start, end = self.values
        return MEAN_BYTES * (end - start)


def slices_of(spec: RunSpec, count: int) -> tuple[Slice, ...]:
    """The partitions of a shard of ``count`` values; some are empty when chunks are too few."""
    return tuple(Slice(count, chunks) for chunks in partition_chunks(count, spec.reduce.partitions))


def slice_of(spec: RunSpec, count: int, partition: int) -> Slice:
    """One of ``slices_of``, without making all of them."""
    return Slice(count, chunks_of(count, spec.reduce.partitions, partition))


def byte_range(spec: RunSpec, params: CodecParams, count: int, partition: int) -> tuple[int, int]:
    """Bytes [start, end) of a partition in a delta: asked for every member and partition, so it is worked out alone."""
    return range_of(count, params, chunks_of(count, spec.reduce.partitions, partition))


@dataclass(frozen=True)
class PartitionMean:
    """What an owner hands in, or a leader computes."""

    values: F32
    inputs_sha256: Sha256

    @property
    def body(self) -> bytes:
        """The object's bytes."""
        return bytes(little_endian_bytes(self.values))

    @property
    def sha256(self) -> Sha256:
        return sha256_hex(self.body)


class PartitionReducer:
    """Adds up one partition, member after member in the plan's order; memory is a few vectors of its length."""

    def __init__(self, spec: RunSpec, plan: RoundFrozen, shard: ShardId, where: Slice) -> None:
        """Raises ``Rejected('no_members')``."""
        self.members: tuple[PlanMember, ...] = accepted_members(plan, shard)
        self._spec = spec
        self._plan = plan
        self._slice = where
        start, end = where.values
        self._mean = MeanAccumulator(end - start)
        self._inputs = hashlib.sha256()
        self._added = 0

    def add(self, header: bytes, records: bytes | memoryview) -> None:
        """The next member's header and the bytes of its range. Raises ``Rejected`` for bytes that are no delta's."""
        member = self.members[self._added]
        params, count = delta_params(self._spec.codec, member.base_revision), self._slice.count
        try:
            scale = read_header(header, expect=params, count=count)
            values = decode_range(records, scale, expect=params, count=count, chunks=self._slice.chunks)
        except Rejected as error:
            raise Rejected(error.code, f"the accepted delta of {member.hotkey}: {error.message}") from None
        self._mean.add(member.scale, values)
        self._inputs.update(header + hashlib.sha256(records).digest())
        self._added += 1

    def finish(self) -> PartitionMean:
        """Raises ``Rejected('bad_merge')`` for a mean that is not finite."""
        assert self._added == len(self.members), "every accepted member is added"
        try:
            values = self._mean.finish(divisor(self._plan, self.members))
        except ValueError as error:
            raise Rejected("bad_merge", f"round {self._plan.round}: {error}") from None
        return PartitionMean(values, Sha256(self._inputs.hexdigest()))


def reduce_partitions(
    spec: RunSpec,
    plan: RoundFrozen,
    shard: ShardId,
    slices: Mapping[int, Slice],
    opened: Callable[[PlanMember], Ranges],
) -> dict[int, PartitionMean]:
    """The means of some partitions of a shard, by partition; every accepted member is ``opened`` once, in the plan's
    order, and asked for the ranges in the order of ``slices``.

    Raises ``Rejected`` for what can't be added up, and what reading raises.
    """
    reducers = {partition: PartitionReducer(spec, plan, shard, where) for partition, where in slices.items()}
    for member in accepted_members(plan, shard) if reducers else ():
        ranges, params = opened(member), delta_params(spec.codec, member.base_revision)
        for partition, reducer in reducers.items():
            reducer.add(*ranges(*byte_range(spec, params, slices[partition].count, partition)))
    return {partition: reducer.finish() for partition, reducer in reducers.items()}


def reduce_partition(
    spec: RunSpec,
    plan: RoundFrozen,
    shard: ShardId,
    partition: int,
    where: Slice,
    opened: Callable[[PlanMember], Ranges],
) -> PartitionMean:
    """The mean of one partition; see ``reduce_partitions``."""
    return reduce_partitions(spec, plan, shard, {partition: where}, opened)[partition]


def require_inputs(mean: PartitionMean, partition: int, expected: Sha256) -> None:
    """What an owner has read must be what the leader has. Raises ``Rejected('wrong_inputs')``."""
    if mean.inputs_sha256 != expected:
        raise Rejected("wrong_inputs", f"partition {partition} was read otherwise than the leader has it")


def inputs_sha256(inputs: Iterable[tuple[bytes, Sha256]]) -> Sha256:
    """The number that proves what was read: of each accepted member its delta's header and the hash of its range."""
    digest = hashlib.sha256()
    for header, range_sha256 in inputs:
        assert len(header) == HEADER_BYTES
        digest.update(header + bytes.fromhex(range_sha256))
    return Sha256(digest.hexdigest())
