"""Merging again what the log says was merged: for verifiers, and for a leader that must know the outer state.

The residual of the updates is in no object but the snapshots, so a validator that takes over, or was away, starts from
one of them, or from what it remembers, and merges the rounds after it from their deltas: the way that is the least to
download (``catchup.py``). Invariant: what is returned has the hashes that the log
committed; the plan is proved by the slot's hash, each delta by its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from common import keys
from common.codec.params import F32
from common.errors import Rejected
from common.merge.outer import OuterState
from common.model.shards import plan_shards
from common.model.snapshot import snapshot_size_bytes
from common.runlog.casput import MAX_READ_BYTES
from common.runlog.catchup import At, reach
from common.runlog.entries import PlanMember, RoundFrozen, decode_entry
from common.runlog.materialise import Say, load_snapshot, stages, unheard
from common.runlog.recompute import MergeResult, mean_round, merge_mean
from common.runlog.reduced import MIXED, WrongMean, lied_means, read_words, taken_means
from common.runlog.state import RevisionNode, RunState
from common.spec import RunSpec
from common.store.port import ObjectReader
from common.units import Revision, Sha256, ShardId

LEADERS_FAULT = frozenset({MIXED, "bad_merge"})
"""What is wrong with means that were taken, whoever reads them."""


@dataclass(frozen=True)
class ShardMemory:
    """Everything about a shard of a revision: what the merge of the next one starts from."""

    shard: ShardId
    weights: F32
    outer: OuterState


def read_plan(reader: ObjectReader, state: RunState, node: RevisionNode) -> RoundFrozen:
    """The plan that ``node`` was merged by. Raises as ``ObjectReader.fetch``; ValueError for revision 0."""
    if node.plan_seq is None or node.plan_sha256 is None:
        raise ValueError("revision 0 was merged by no plan")
    key = keys.log_key(state.run, node.plan_seq)
    slot = reader.fetch(key, max_bytes=MAX_READ_BYTES, sha256=node.plan_sha256)
    plan = decode_entry(slot, state.run).data
    assert isinstance(plan, RoundFrozen)
    return plan


def read_delta(reader: ObjectReader, run: str, member: PlanMember) -> bytes:
    """The bytes of a plan member's delta, proved by hash and size. Raises as ``ObjectReader.fetch``."""
    key = keys.delta_key(run, member.round, member.shard, member.hotkey, member.delta.sha256)
    size = member.delta.size_bytes
    return reader.fetch(key, max_bytes=size, sha256=member.delta.sha256, size_bytes=size)


def start_outer(spec: RunSpec, outer: OuterState, reset: bool) -> OuterState:
    """The outer state that a merge starts from: its base's, or zero after a rollback that resets it."""
    return OuterState.zero(len(outer.residual), spec.outer.momentum) if reset else outer


@dataclass(frozen=True)
class Difference:
    """One hash of a commit that merging again does not give."""

    shard: ShardId
    what: Literal["update", "weights", "outer_state"]
    ours: Sha256
    theirs: Sha256


@dataclass(frozen=True)
class Compared:
    """What merging a revision again gives, of one shard."""

    memory: ShardMemory
    """As it was committed, unless something differs."""
    differences: tuple[Difference, ...]
    """Every hash that is not the committed one, and that nobody but the leader answers for."""
    wrong_means: tuple[WrongMean, ...] = ()
    """Means that miners handed in, and the commit took, though the plan's deltas give others."""
    unproved: str = ""
    """Why what the commit took from miners doesn't account for the differences."""


def compare(reader: ObjectReader, state: RunState, node: RevisionNode, base: ShardMemory) -> Compared:
    """Merge ``node`` again, from the memory of its parent.

    Raises what ``merge_round`` and ``ObjectReader.fetch`` raise.
    """
    spec, shard, plan = state.spec, base.shard, read_plan(reader, state, node)
    outer = start_outer(spec, base.outer, node.from_reset)

    def read(member: PlanMember) -> bytes:
        return read_delta(reader, state.run, member)

    mean = mean_round(spec, shard, plan, read, len(base.weights))
    result = merge_mean(spec, shard, plan, mean, base.weights, outer)
    differences, unproved = _differences(node, shard, result), ""
    if differences and node.reduced is not None and node.plan_sha256 is not None:
        unproved = "with the means that were taken from miners it gives others still"
        try:
            words = read_words(reader, state.run, plan.round, node.plan_sha256, node.reduced)
            taken = taken_means(spec, node.reduced, words)
            given, wrong = lied_means(reader, spec, plan, taken, shard, mean, read)
            again = merge_mean(spec, shard, plan, given, base.weights, outer)
        except Rejected as refusal:
            if refusal.code not in LEADERS_FAULT:
                raise  # what can't be read now accuses nobody
            unproved = str(refusal)
        else:
            if not _differences(node, shard, again):
                return Compared(_memory(shard, again), (), wrong)
    return Compared(_memory(shard, result), differences, unproved=unproved)


def _differences(node: RevisionNode, shard: ShardId, result: MergeResult) -> tuple[Difference, ...]:
    made = node.shards[shard]
    assert made.update is not None, "only revision 0 is made by no update"
    pairs = (
        Difference(shard, "update", result.update.sha256, made.update.sha256),
        Difference(shard, "weights", result.weights_sha256, made.weights_sha256),
        Difference(shard, "outer_state", result.outer_sha256, made.outer_sha256),
    )
    return tuple(pair for pair in pairs if pair.ours != pair.theirs)


def _memory(shard: ShardId, result: MergeResult) -> ShardMemory:
    return ShardMemory(shard, result.new_weights, result.new_outer_state)


def remerge(reader: ObjectReader, state: RunState, node: RevisionNode, base: ShardMemory) -> Compared:
    """``compare``, for whoever goes on from what comes out.

    Raises ``Rejected``: ``merge_mismatch`` when the result is not what the log committed; and as ``compare``.
    """
    compared = compare(reader, state, node, base)
    for found in compared.differences:
        what = found.what.replace("_", " ")
        raise Rejected("merge_mismatch", f"merging shard {base.shard} again gives another {what} than committed")
    return compared


def rebuild(
    reader: ObjectReader,
    state: RunState,
    revision: Revision,
    shard: ShardId,
    held: At[ShardMemory] | None = None,
    say: Say = unheard,
) -> tuple[ShardMemory, tuple[str, ...]]:
    """Weights and outer state of a shard of ``revision``, and what had to be passed over on the way.

    ``held`` is what is known of an ancestor; ``say`` is told the way. Raises ``Rejected('revision_unavailable')`` when
    no way leads there, and ``Retryable`` when the store stays away.
    """
    spec, path = state.spec, state.lineage(revision)
    notes: list[str] = []
    size = snapshot_size_bytes(spec.model, plan_shards(spec.model, spec.num_shards)[shard])

    def load(start: Revision) -> ShardMemory:
        found = load_snapshot(reader, spec, state.revisions[start], shard)
        assert found is not None, "only snapshots that the log names are on a way"
        return ShardMemory(shard, *found)

    memory = reach(
        stages(state, path, shard, size, lambda node: node.merged_bytes[shard]),
        held,
        load,
        lambda step, base: remerge(reader, state, state.revisions[step], base).memory,
        say,
        notes,
    )
    return memory, tuple(notes)
