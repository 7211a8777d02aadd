"""What a commit says that it took from miners: whether it may say so, and what its merge is with their means.

A leader takes the mean of a partition when all its owners agree on it; when they agree on a lie, the commit is not
what its plan gives. So it names the signed words that it went by and the partitions that it took. Whoever merges the
revision again and comes to other hashes puts those means in place of its own: when that gives the hashes of the commit,
the leader did its part, and the owners' own signatures tell who lied. Everything else is the leader's fault.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from common import keys
from common.codec.container import HEADER_BYTES
from common.codec.params import F32
from common.errors import Rejected
from common.merge.partition import PartitionMean, Ranges, reduce_partitions, slices_of
from common.model.layout import little_endian_bytes
from common.records import ObjectRef
from common.reductions import (
    MAX_REDUCTION_BYTES,
    Copy,
    Reduced,
    Reduction,
    TakenParts,
    UsedWord,
    decode_reduction,
    require_signer,
)
from common.runlog.entries import PlanMember, RoundFrozen
from common.spec import RunSpec
from common.store.port import ObjectReader
from common.units import Hotkey, RoundId, Sha256, ShardId, sha256_hex

MIXED = "mixed_copies"
"""Code for words that do not bear out what a commit took."""


@dataclass(frozen=True)
class WrongMean:
    """What one owner handed in, signed, that is not the mean of the plan's deltas."""

    hotkey: Hotkey
    shard: ShardId
    partition: int
    reduction_sha256: Sha256
    """Names the signed word."""
    found: Sha256
    """Hash of the mean that the word names."""
    computed: Sha256
    """Hash of the mean that the plan's deltas give."""

    @property
    def told(self) -> str:
        """In words, as a report and a conviction have it."""
        place = f"partition {self.partition} of shard {self.shard}"
        return f"wrong mean of {place}: {self.found[:16]}… instead of {self.computed[:16]}…"


@dataclass(frozen=True)
class Taken:
    """The mean of one partition as a commit took it."""

    copies: Mapping[Hotkey, tuple[Sha256, Copy]]
    """Of each owner the hash of its word, and what that says; all of the same mean."""

    @property
    def mean(self) -> ObjectRef:
        return next(iter(self.copies.values()))[1].mean

    @property
    def inputs_sha256(self) -> Sha256:
        return next(iter(self.copies.values()))[1].inputs_sha256


def check_reduced(spec: RunSpec, plan: RoundFrozen, reduced: Reduced) -> str:
    """What is wrong with what a commit of ``plan`` says of miners' means, or nothing."""
    how = spec.reduce
    if how.kind != "butterfly" or plan.attempt != 0:
        return "miners reduce only the first plan of a round, in a run whose spec says so"
    accepted = {member.hotkey for member in plan.members if member.decision == "accepted"}
    if any(word.hotkey not in accepted for word in reduced.words):
        return "it names the reduction of a miner whose work the plan does not accept"
    if any(not 0 <= part.shard < spec.num_shards for part in reduced.parts):
        return "it names a shard that the run does not have"
    for part in reduced.parts:
        if not all(0 <= partition < how.partitions for partition in part.partitions):
            return "it names a partition that the run does not have"
        if len(part.partitions) > how.partitions - how.audits:
            return f"it takes {len(part.partitions)} partitions of a shard though {how.audits} are drawn to be computed"
    return ""


def read_words(
    reader: ObjectReader, run: str, round_id: RoundId, plan_sha256: Sha256, reduced: Reduced
) -> list[Reduction]:
    """The words that a commit names, in its order, each signed by whom it names and about its plan.

    Raises as ``ObjectReader.fetch``, and ``Rejected('mixed_copies')`` for one that is no such word.
    """
    return [_read_word(reader, run, round_id, plan_sha256, named) for named in reduced.words]


def _read_word(reader: ObjectReader, run: str, round_id: RoundId, plan_sha256: Sha256, named: UsedWord) -> Reduction:
    key = keys.reduction_key(run, round_id, named.hotkey, named.sha256)
    body = reader.fetch(key, max_bytes=MAX_REDUCTION_BYTES, sha256=named.sha256)
    try:
        word, record = decode_reduction(body, run)
        require_signer(word, record)
    except Rejected as refusal:
        raise Rejected(MIXED, f"{key} is no miner's word: {refusal}") from refusal
    if (word.signer, word.round, word.plan_sha256) != (named.hotkey, round_id, plan_sha256):
        raise Rejected(MIXED, f"{key} is the word of another miner, or about another plan")
    return word


def taken_means(spec: RunSpec, reduced: Reduced, words: list[Reduction]) -> dict[tuple[ShardId, int], Taken]:
    """The copies behind each partition that a commit took.

    Raises ``Rejected('mixed_copies')`` unless for each as many owners as the spec asks for have signed the same mean.
    """
    copies: dict[tuple[ShardId, int], dict[Hotkey, tuple[Sha256, Copy]]] = {}
    for named, word in zip(reduced.words, words, strict=True):
        for copy in word.copies:
            copies.setdefault((copy.shard, copy.partition), {})[word.signer] = (named.sha256, copy)
    places = [(part.shard, partition) for part in reduced.parts for partition in part.partitions]
    return {place: _agreed(spec, place, copies.get(place, {})) for place in places}


def lied_means(
    reader: ObjectReader,
    spec: RunSpec,
    plan: RoundFrozen,
    taken: Mapping[tuple[ShardId, int], Taken],
    shard: ShardId,
    mean: F32,
    read_delta: Callable[[PlanMember], bytes],
) -> tuple[F32, tuple[WrongMean, ...]]:
    """``mean``, what the plan gives for ``shard``, with the means in their places that the commit took instead; and who
    signed those that differ.

    Raises ``Rejected`` when one can't be had, is no finite vector, or was made of something else than the plan's
    deltas: then it is no owner's lie.
    """
    slices = slices_of(spec, len(mean))
    differing = {
        partition: found
        for (of, partition), found in taken.items()
        if of == shard and found.mean.sha256 != _hash(mean[slice(*slices[partition].values)])
    }
    for partition, found in differing.items():
        if found.mean.size_bytes != slices[partition].mean_bytes or not found.mean.size_bytes:
            raise Rejected(MIXED, f"partition {partition} was taken though its mean has another size than its values")
    right = true_means(spec, plan, shard, len(mean), sorted(differing), read_delta)
    given, wrong = mean.copy(), []
    for partition, found in sorted(differing.items()):
        if found.inputs_sha256 != right[partition].inputs_sha256:
            raise Rejected(MIXED, f"partition {partition} was taken though it was not made of the plan's deltas")
        given[slice(*slices[partition].values)] = _values(reader, spec.run, plan, shard, partition, found)
        computed = right[partition].sha256
        wrong += [
            WrongMean(hotkey, shard, partition, word, copy.mean.sha256, computed)
            for hotkey, (word, copy) in found.copies.items()
        ]
    return given, tuple(wrong)


def why_not_wrong(
    reader: ObjectReader,
    spec: RunSpec,
    plan: RoundFrozen,
    plan_sha256: Sha256,
    count: int,
    said: WrongMean,
    read_delta: Callable[[PlanMember], bytes],
) -> str:
    """Why it is not proved that a miner handed in such a mean of a shard of ``count`` values; empty when it is.

    Raises ``Rejected`` when word or deltas can't be had, and ``Retryable`` when the store stays away.
    """
    slices = slices_of(spec, count)
    if not 0 <= said.partition < len(slices) or not slices[said.partition].mean_bytes:
        return f"there is no partition {said.partition}"
    named = Reduced((UsedWord(said.hotkey, said.reduction_sha256),), (TakenParts(said.shard, (said.partition,)),))
    [word] = read_words(reader, spec.run, plan.round, plan_sha256, named)
    copies = [copy for copy in word.copies if (copy.shard, copy.partition) == (said.shard, said.partition)]
    if [copy.mean.sha256 for copy in copies] != [said.found]:
        return f"its word names no mean {said.found[:16]}… of partition {said.partition}"
    right = true_means(spec, plan, said.shard, count, [said.partition], read_delta)[said.partition]
    if copies[0].inputs_sha256 != right.inputs_sha256:
        return "it was not made of the plan's deltas, and no leader may take such a mean"
    if right.sha256 != said.computed or right.sha256 == said.found:
        return f"the plan's deltas give {right.sha256[:16]}…"
    return ""


def _hash(values: F32) -> Sha256:
    return sha256_hex(little_endian_bytes(values))


def _agreed(spec: RunSpec, place: tuple[ShardId, int], copies: dict[Hotkey, tuple[Sha256, Copy]]) -> Taken:
    shard, partition = place
    if len(copies) < spec.reduce.redundancy:
        raise Rejected(MIXED, f"{len(copies)} miners signed for partition {partition} of shard {shard}")
    if len({(copy.mean, copy.inputs_sha256) for _, copy in copies.values()}) != 1:
        raise Rejected(MIXED, f"the miners that signed for partition {partition} of shard {shard} do not agree")
    return Taken(copies)


def true_means(
    spec: RunSpec,
    plan: RoundFrozen,
    shard: ShardId,
    count: int,
    partitions: list[int],
    read_delta: Callable[[PlanMember], bytes],
) -> dict[int, PartitionMean]:
    """These partitions of a shard of ``count`` values as their owners had to compute them; each delta is read once.

    Raises ``Rejected`` for a plan or deltas that can't be added up, and what ``read_delta`` raises.
    """

    def opened(member: PlanMember) -> Ranges:
        delta = read_delta(member)
        return lambda start, end: (delta[:HEADER_BYTES], delta[start:end])

    slices = slices_of(spec, count)
    return reduce_partitions(spec, plan, shard, {partition: slices[partition] for partition in partitions}, opened)


def _values(reader: ObjectReader, run: str, plan: RoundFrozen, shard: ShardId, partition: int, taken: Taken) -> F32:
    """From whichever owner's copy the storage gives."""
    size, sha256, trouble = taken.mean.size_bytes, taken.mean.sha256, None
    for owner in taken.copies:
        key = keys.mean_key(run, plan.round, shard, partition, owner, sha256)
        try:
            body = reader.fetch(key, max_bytes=size, sha256=sha256, size_bytes=size)
        except Rejected as refusal:
            trouble = refusal
            continue
        return _finite(body, partition)
    assert trouble is not None, "a taken mean has owners"
    raise trouble


def _finite(body: bytes, partition: int) -> F32:
    values = np.frombuffer(body, dtype="<f4").astype(np.float32, copy=False)
    if not bool(np.isfinite(values).all()):
        raise Rejected(MIXED, f"the mean of partition {partition} that was taken is not finite")
    return values
