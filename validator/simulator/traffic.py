"""What a reduction moves: the bytes of partitions of the preset's model, and who has moved how many of them.

Sizes are production's own (``partition_ranges``, ``slices_of``), of the model that travels, whatever vector is trained.
Of the leader's reads those of the gates are counted, and those of the merge where its memory can't hold all deltas.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from common.codec.container import encoded_size, partition_ranges
from common.codec.params import delta_params
from common.merge.partition import Slice, slices_of
from common.runlog.entries import PlanMember, RoundFrozen
from common.spec import RunSpec
from common.units import Revision, RoundId
from validator.bodies import MAX_KEPT_BYTES


@dataclass
class RoundTraffic:
    """One round's reduction. Bytes; miners by their index."""

    down: Counter[int] = field(default_factory=Counter)
    up: Counter[int] = field(default_factory=Counter)
    dealt: int = 0
    """Partitions that miners were given."""
    alone: dict[str, int] = field(default_factory=dict)
    """Partitions that the leader computed, by reason."""
    dealt_at_s: float = 0.0
    """When, in virtual time."""
    dealt_after_s: float = 0.0
    """From the leader's first look at the plan to the deal."""
    waited_s: float = 0.0
    """From the leader's first look at the plan to the beginning of its merge."""
    gates_bytes: int = 0
    """What the leader read to judge the deltas that it accepted."""
    merge_bytes: int = 0
    """What it read to put the mean together, or to compute it."""

    @property
    def by_miners(self) -> int:
        """Partitions that were taken from the owners' copies."""
        return self.dealt - sum(self.alone.values())


class Ranges:
    """Bytes of the partitions of one shard of ``values`` values."""

    def __init__(self, spec: RunSpec, values: int) -> None:
        self._spec = spec
        self._values = values
        self._slices: tuple[Slice, ...] = slices_of(spec, values)
        self._lengths: dict[Revision, list[int]] = {}

    def mean_bytes(self, partition: int) -> int:
        """Of a dense mean, float32."""
        return self._slices[partition].mean_bytes

    def read_bytes(self, members: tuple[PlanMember, ...], partition: int) -> int:
        """Of a partition in all accepted deltas, without their headers."""
        bases = Counter(member.base_revision for member in members)
        return sum(count * self._of(base)[partition] for base, count in bases.items())

    def delta_bytes(self, members: tuple[PlanMember, ...]) -> int:
        """Of all accepted deltas, whole."""
        codec = self._spec.codec
        bases = Counter(member.base_revision for member in members)
        return sum(n * encoded_size(self._values, delta_params(codec, base)) for base, n in bases.items())

    def kept(self, members: tuple[PlanMember, ...]) -> bool:
        """Whether the leader still has all deltas in memory from its gates. Of more than it keeps, none counts."""
        return self.delta_bytes(members) <= MAX_KEPT_BYTES

    def _of(self, base: Revision) -> list[int]:
        known = self._lengths.get(base)
        if known is None:
            params = delta_params(self._spec.codec, base)
            ranges = partition_ranges(self._values, params, self._spec.reduce.partitions)
            known = self._lengths[base] = [end - start for start, end in ranges]
        return known


class Traffic:
    """Of all rounds of a simulation."""

    def __init__(self) -> None:
        self.rounds: dict[RoundId, RoundTraffic] = {}

    @property
    def share_by_miners(self) -> float:
        """Of the partitions that were dealt, those that were taken from the owners' copies."""
        dealt = sum(one.dealt for one in self.rounds.values())
        return sum(one.by_miners for one in self.rounds.values()) / dealt if dealt else 0.0

    def of(self, round_id: RoundId) -> RoundTraffic:
        return self.rounds.setdefault(round_id, RoundTraffic())

    def note_read(self, plan: RoundFrozen, index: int, size_bytes: float) -> None:
        """A miner has read so much of the deltas of a plan."""
        self.of(plan.round).down[index] += round(size_bytes)

    def note_put(self, plan: RoundFrozen, index: int, size_bytes: float) -> None:
        """It has sent so much of the means."""
        self.of(plan.round).up[index] += round(size_bytes)
