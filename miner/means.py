"""The means of a miner's duties, one after the other, of ranges that are read several at a time. Blocking.

The header of a delta is read once for all partitions of a plan. Round trips would take most of the time otherwise: a
duty is a small range of each of many deltas. Invariants: what is added is added in the plan's order, whatever comes
first; what is read ahead is bounded in number and bytes; what was made before something failed is given out before the
failure is raised.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from common import keys
from common.blocking import in_order
from common.codec.container import HEADER_BYTES
from common.codec.params import delta_params
from common.errors import Rejected, RemoteError
from common.merge.partition import (
    PartitionMean,
    Ranges,
    Slice,
    byte_range,
    reduce_partition,
    require_inputs,
    slice_of,
)
from common.model.layout import run_layouts
from common.runlog.entries import PlanMember, RoundFrozen
from common.runlog.recompute import accepted_members
from common.spec import RunSpec
from common.store.port import RangeReader
from common.units import Sha256, ShardId
from common.wire import MeanDuty
from miner.duties import Place, place_of

READS_AT_A_TIME = 16
MOST_AHEAD_BYTES = 16 << 20
"""Of ranges that were asked for and are not added yet, unless one alone is larger."""
PIECE_BYTES = 16 << 20
"""Of means that are handed in together; the last may go beyond it."""
PIECES = 8
"""In the time that is left: what is done after each share of it is handed in, so that it counts whatever comes."""
Made = tuple[Place, PartitionMean]


class MeanMaker:
    """Makes them for one plan at a time. A thread whose caller has left may still be at the plan before."""

    def __init__(self, spec: RunSpec, reader: RangeReader) -> None:
        self._spec = spec
        self._reader = reader
        self._plan_sha256 = ""
        self._headers: dict[str, bytes] = {}
        """Of the plan's deltas, by key."""

    def slice_of(self, duty: MeanDuty) -> Slice:
        """Where a duty lies. Raises ``Rejected('bad_duty')``."""
        spec = self._spec
        layouts = run_layouts(spec.model, spec.num_shards)
        if duty.shard >= len(layouts) or duty.partition >= spec.reduce.partitions:
            raise Rejected("bad_duty", f"there is no partition {duty.partition} of shard {duty.shard}")
        return slice_of(spec, layouts[duty.shard].total, duty.partition)

    def means(
        self, plan: RoundFrozen, plan_sha256: Sha256, duties: list[MeanDuty], over: threading.Event
    ) -> Iterator[Made]:
        """Each duty's mean, in this order. Raises ``Rejected``, also once ``over`` is set, and ``Retryable``."""
        if plan_sha256 != self._plan_sha256:
            self._plan_sha256, self._headers = plan_sha256, {}
        headers = self._headers
        try:
            self._read_headers(plan, duties, headers, over)
            ranges = self._at_once(self._ranges(plan, duties))
            for duty in duties:
                yield place_of(duty), self._mean(plan, duty, headers, ranges, over)
        except Rejected:
            if self._headers is headers:
                self._headers = {}  # one may have come damaged
            raise

    def _mean(
        self,
        plan: RoundFrozen,
        duty: MeanDuty,
        headers: dict[str, bytes],
        ranges: Iterator[bytes],
        over: threading.Event,
    ) -> PartitionMean:
        def opened(member: PlanMember) -> Ranges:
            _require_time(over)
            return lambda _start, _end: (headers[self._key(member)], next(ranges))  # read ahead in the same order

        where = self.slice_of(duty)
        mean = reduce_partition(self._spec, plan, ShardId(duty.shard), duty.partition, where, opened)
        require_inputs(mean, duty.partition, Sha256(duty.inputs_sha256))
        return mean

    def _read_headers(
        self, plan: RoundFrozen, duties: list[MeanDuty], headers: dict[str, bytes], over: threading.Event
    ) -> None:
        shards = sorted({ShardId(duty.shard) for duty in duties})
        members = [member for shard in shards for member in accepted_members(plan, shard)]
        missing = [member for member in members if self._key(member) not in headers]
        reads = self._at_once((member, 0, HEADER_BYTES) for member in missing)
        for member, header in zip(missing, reads, strict=True):
            _require_time(over)
            headers[self._key(member)] = header

    def _ranges(self, plan: RoundFrozen, duties: list[MeanDuty]) -> Iterator[tuple[PlanMember, int, int]]:
        """All members' together are proved by what the leader gave."""
        for duty in duties:
            count = self.slice_of(duty).count
            for member in accepted_members(plan, ShardId(duty.shard)):
                params = delta_params(self._spec.codec, member.base_revision)
                yield member, *byte_range(self._spec, params, count, duty.partition)

    def _at_once(self, wanted: Iterable[tuple[PlanMember, int, int]]) -> Iterator[bytes]:
        calls = ((end - start, partial(self._read, member, start, end)) for member, start, end in wanted)
        return in_order(calls, READS_AT_A_TIME, MOST_AHEAD_BYTES)

    def _read(self, member: PlanMember, start: int, end: int) -> bytes:
        return self._reader.fetch_range(self._key(member), start=start, end=end, size_bytes=member.delta.size_bytes)

    def _key(self, member: PlanMember) -> str:
        return keys.delta_key(self._spec.run, member.round, member.shard, member.hotkey, member.delta.sha256)


class Pieces:
    """Means in pieces to hand in: as many as are made in ``piece_s`` seconds, or ``PIECE_BYTES`` of them."""

    def __init__(self, means: Iterator[Made], piece_s: float, now_s: Callable[[], float]) -> None:
        self._means = means
        self._piece_s = piece_s
        self._now_s = now_s
        self._failure: RemoteError | None = None

    def next(self) -> dict[Place, PartitionMean]:
        """At least one mean; none when all are given. Raises what kept the rest from being made."""
        if self._failure is not None:
            raise self._failure
        piece: dict[Place, PartitionMean] = {}
        size_bytes, until_s = 0, self._now_s() + self._piece_s
        try:
            for place, mean in self._means:
                piece[place] = mean
                size_bytes += mean.values.nbytes
                if size_bytes >= PIECE_BYTES or self._now_s() >= until_s:
                    break
        except RemoteError as failure:
            if not piece:
                raise
            self._failure = failure
        return piece


def _require_time(over: threading.Event) -> None:
    if over.is_set():
        raise Rejected("too_late", "nobody waits for it any more")
