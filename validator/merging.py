"""The leader's merge of a frozen plan: every shard, then the objects, then the numbers for the log. Blocking.

Invariants: the plan in the log is merged as it stands, by whoever leads; objects are in the bucket before anything
names them; nothing is committed that makes the held-out loss jump, whatever the gates let through.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from common import keys
from common.codec.params import F32
from common.model.shards import plan_shards
from common.model.snapshot import encode_snapshot
from common.records import ObjectRef
from common.reductions import Reduced
from common.runlog.entries import RevisionCommitted, RoundFrozen, ShardState, revision_hash
from common.runlog.materialise import pack
from common.runlog.recompute import MergeResult, merge_mean, merge_round
from common.runlog.remerge import ShardMemory, read_delta, start_outer
from common.runlog.rules import plan_tokens
from common.runlog.state import RunState
from common.spec import RunSpec
from common.store.port import ObjectReader, ObjectStore
from common.units import Revision, Sha256, ShardId, sha256_hex
from validator.heads import Memories
from validator.outages import only_facts

MOST_RISE_NATS = 0.5
"""A merge that raises the held-out loss by more is not committed."""


@dataclass(frozen=True)
class Merged:
    """The next revision, stored and ready to be committed."""

    commit: RevisionCommitted
    memories: Memories
    told: str
    """What it did to the held-out loss."""


def merge_plan(
    state: RunState, plan: RoundFrozen, base: Memories, reader: ObjectReader, means: Mapping[ShardId, F32] | None = None
) -> tuple[MergeResult, ...]:
    """Merge every shard of the open round's plan, with the means of its deltas where they are known already. Raises
    ``Rejected`` when it can't be merged, ``Retryable`` on outages."""
    spec, reset = state.spec, state.resets_outer

    def merge(memory: ShardMemory) -> MergeResult:
        outer = start_outer(spec, memory.outer, reset)
        if means is not None and memory.shard in means:
            return merge_mean(spec, memory.shard, plan, means[memory.shard], memory.weights, outer)
        get = partial(read_delta, reader, spec.run)
        return merge_round(spec, memory.shard, plan, get, memory.weights, outer)

    return tuple(merge(memory) for memory in base)


def memories_of(results: tuple[MergeResult, ...]) -> Memories:
    """What the next merge starts from."""
    return tuple(
        ShardMemory(ShardId(shard), result.new_weights, result.new_outer_state) for shard, result in enumerate(results)
    )


def hash_of(results: tuple[MergeResult, ...]) -> Sha256:
    """The revision hash that these results will have."""
    shards = enumerate(results)
    return revision_hash(tuple(ShardState(ShardId(s), r.weights_sha256, r.outer_sha256, None, None) for s, r in shards))


def guard(base_loss: float, new_loss: float) -> str:
    """What is wrong with the merge's loss on the held-out text, or nothing."""
    if new_loss <= base_loss + MOST_RISE_NATS:
        return ""
    told = f"the held-out loss would go from {base_loss:.3f} to {new_loss:.3f}"
    return f"{told}; {MOST_RISE_NATS:g} is the most it may rise"


def store_revision(
    store: ObjectStore,
    state: RunState,
    plan: RoundFrozen,
    results: tuple[MergeResult, ...],
    told: str = "",
    reduced: Reduced | None = None,
) -> Merged:
    """Put updates, and snapshots when their turn has come; the entry that commits them, and names in ``reduced`` what
    was taken from miners."""
    spec, revision = state.spec, state.next_revision
    with_snapshot = revision % spec.round.snapshot_every == 0
    shards = tuple(
        _store_shard(store, spec, plan, revision, ShardId(shard), result, with_snapshot)
        for shard, result in enumerate(results)
    )
    commit = RevisionCommitted(plan.round, revision, plan.base_revision, plan_tokens(spec, plan), shards, reduced)
    return Merged(commit, memories_of(results), told)


def _store_shard(
    store: ObjectStore,
    spec: RunSpec,
    plan: RoundFrozen,
    revision: Revision,
    shard: ShardId,
    result: MergeResult,
    with_snapshot: bool,
) -> ShardState:
    with only_facts():
        store.put(keys.update_key(spec.run, plan.round, shard, result.update.sha256), result.update_bytes)
    snapshot = None
    if with_snapshot:
        layers = plan_shards(spec.model, spec.num_shards)[shard]
        body = encode_snapshot(spec.model, layers, pack(result.new_weights, result.new_outer_state))
        snapshot = ObjectRef(sha256_hex(body), len(body))
        with only_facts():
            store.put(keys.snapshot_key(spec.run, revision, shard, snapshot.sha256), body)
    return ShardState(shard, result.weights_sha256, result.outer_sha256, result.update, snapshot)
