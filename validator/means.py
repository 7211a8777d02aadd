"""The means of a plan, put together of the owners' copies, and of what the leader computes itself. Blocking.

Invariants: the vector is, bit for bit, the mean that a leader alone would compute, unless all owners of a partition
that nobody drew agree on the same lie; a copy that can't be had, or is no finite vector, counts as none; what is
computed rests on bytes whose hash the checked manifests give.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from loguru import logger

from common import keys
from common.codec.params import F32
from common.errors import RemoteError
from common.merge.butterfly import LATE, WRONG_MEAN, Finding, findings_of, must_compute
from common.merge.partition import Ranges, Slice, reduce_partition, slices_of
from common.reductions import MAX_WORDS, Reduced, TakenParts, UsedWord
from common.runlog.entries import PlanMember, RoundFrozen
from common.runlog.reduced import WrongMean
from common.runlog.remerge import read_delta
from common.spec import RunSpec
from common.units import Hotkey, RoundId, Sha256, ShardId, sha256_hex
from validator.bodies import RememberingReader
from validator.reducing import Deal, Kept, Place

DRAW = "the draw"
"""Why a partition is computed again though its owners agree."""


@dataclass(frozen=True)
class Handed:
    """What the owners have handed in, when the leader stops waiting."""

    plan: RoundFrozen
    deal: Deal
    copies: Mapping[Place, Mapping[Hotkey, Kept]]
    drawn: frozenset[Place]
    """Computed again though the copies agree."""
    why_drawn: str = DRAW


@dataclass(frozen=True)
class Means:
    """What comes of it."""

    vectors: Mapping[ShardId, F32]
    wrong: tuple[WrongMean, ...]
    late: frozenset[Hotkey]
    """Who did not hand in all that was due."""
    reduced: Reduced | None
    """What of them came from the owners; None when nothing did."""
    checked: int
    """How many were computed again for the draw though all owners agree."""
    told: str
    """How many partitions came from the owners, and why the others did not."""


def why_computed(handed: Handed, place: Place) -> str:
    """Why the leader computes a partition itself; empty when it goes by the owners' copies, if it gets them. Pure."""
    copies = {owner: kept.copy.mean.sha256 for owner, kept in handed.copies.get(place, {}).items()}
    return must_compute(handed.deal.duties[place], copies) or (handed.why_drawn if place in handed.drawn else "")


def gather(spec: RunSpec, counts: Mapping[ShardId, int], handed: Handed, reader: RememberingReader) -> Means:
    """Compare, compute what has to be, and put the vectors together.

    Raises ``Rejected`` when what the plan accepts can't be added up (then nobody's copy was right either), and
    ``Retryable`` when the storage stays away.
    """
    gatherer = _Gatherer(spec, handed, reader)
    shards = sorted(handed.deal.proofs)
    vectors = {shard: gatherer.vector(shard, slices_of(spec, counts[shard])) for shard in shards}
    findings = [(shard, finding) for shard in shards for finding in gatherer.findings(shard)]
    late = frozenset(finding.hotkey for _, finding in findings if finding.code == LATE)
    wrong = tuple(gatherer.wrong(shard, finding) for shard, finding in findings if finding.code == WRONG_MEAN)
    return Means(vectors, wrong, late, gatherer.reduced(), gatherer.checked, gatherer.told())


class _Gatherer:
    def __init__(self, spec: RunSpec, handed: Handed, reader: RememberingReader) -> None:
        self._spec = spec
        self._handed = handed
        self._reader = reader
        self._computed: dict[Place, Sha256] = {}
        self._taken: list[Place] = []
        self._words: set[tuple[Hotkey, Sha256]] = set()
        self._why: dict[str, int] = {}
        self.checked = 0

    def vector(self, shard: ShardId, slices: tuple[Slice, ...]) -> F32:
        out = np.empty(slices[-1].count, dtype=np.float32)
        for partition, where in enumerate(slices):
            if where.mean_bytes:
                out[slice(*where.values)] = self._part(shard, partition, where)
        return out

    def findings(self, shard: ShardId) -> tuple[Finding, ...]:
        duties = [duty for (of, _), duty in sorted(self._handed.deal.duties.items()) if of == shard]
        copies = {
            partition: {owner: kept.copy.mean.sha256 for owner, kept in found.items()}
            for (of, partition), found in self._handed.copies.items()
            if of == shard
        }
        computed = {partition: sha256 for (of, partition), sha256 in self._computed.items() if of == shard}
        return findings_of(duties, copies, computed)

    def wrong(self, shard: ShardId, finding: Finding) -> WrongMean:
        """A finding with the word that proves it."""
        assert finding.found is not None, "what was not handed in is late"
        assert finding.computed is not None, "what is wrong was compared"
        word = self._handed.copies[shard, finding.partition][finding.hotkey].word_sha256
        return WrongMean(finding.hotkey, shard, finding.partition, word, finding.found, finding.computed)

    def reduced(self) -> Reduced | None:
        """What the commit has to name."""
        shards = sorted({shard for shard, _ in self._taken})
        parts = tuple(
            TakenParts(shard, tuple(sorted(partition for of, partition in self._taken if of == shard)))
            for shard in shards
        )
        return Reduced(tuple(UsedWord(*word) for word in sorted(self._words)), parts) if parts else None

    def told(self) -> str:
        whole = len(self._handed.deal.duties)
        reasons = ", ".join(f"{count} for {why}" for why, count in sorted(self._why.items()))
        own = len(self._computed)
        return f"{whole - own} of {whole} partitions reduced by miners" + (f", {own} here: {reasons}" if own else "")

    def _part(self, shard: ShardId, partition: int, where: Slice) -> F32:
        place = shard, partition
        copies = self._handed.copies.get(place, {})
        why = why_computed(self._handed, place)
        self.checked += why == DRAW
        if not why:
            words = self._words | {(owner, kept.word_sha256) for owner, kept in copies.items()}
            found = self._copied(place, copies) if len(words) <= MAX_WORDS else None
            if found is not None:
                self._taken.append(place)
                self._words = words
                return found
            why = "copies that can't be had" if len(words) <= MAX_WORDS else "too many words to name"
        self._why[why] = self._why.get(why, 0) + 1
        mean = self._compute(shard, partition, where)
        self._computed[place] = sha256_hex(mean.tobytes())
        return mean

    def _copied(self, place: Place, copies: Mapping[Hotkey, Kept]) -> F32 | None:
        """The mean that all owners agree on, from whoever's copy the storage gives."""
        spec, (shard, partition) = self._spec, place
        for owner, kept in copies.items():
            size, sha256 = kept.copy.mean.size_bytes, kept.copy.mean.sha256
            key = keys.mean_key(spec.run, RoundId(self._handed.plan.round), shard, partition, owner, sha256)
            try:
                body = self._reader.fetch(key, max_bytes=size, sha256=sha256, size_bytes=size)
            except RemoteError as fault:
                logger.warning("the mean of partition {} of {} can't be had: {}", partition, owner, fault)
                continue
            values = np.frombuffer(body, dtype="<f4").astype(np.float32, copy=False)
            return values if bool(np.isfinite(values).all()) else None
        return None

    def _compute(self, shard: ShardId, partition: int, where: Slice) -> F32:
        proofs = iter(self._handed.deal.proofs[shard])  # in the plan's order, as members are opened

        def opened(member: PlanMember) -> Ranges:
            header, hashes = next(proofs)
            return lambda start, end: (header, self._records(member, hashes[partition], start, end))

        return reduce_partition(self._spec, self._handed.plan, shard, partition, where, opened).values

    def _records(self, member: PlanMember, range_sha256: Sha256, start: int, end: int) -> bytes:
        """A member's byte range, proved; when it comes damaged, of the whole delta, which proves itself."""
        key = keys.delta_key(self._spec.run, member.round, member.shard, member.hotkey, member.delta.sha256)
        size, sha256 = member.delta.size_bytes, member.delta.sha256
        body = self._reader.fetch_range(key, start=start, end=end, size_bytes=size, sha256=sha256)
        if sha256_hex(body) != range_sha256:
            logger.warning("a range of {} came damaged; reading all of it", key)
            body = read_delta(self._reader, self._spec.run, member)[start:end]
        return body
