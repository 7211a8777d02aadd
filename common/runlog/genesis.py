"""The beginning of a run: spec, snapshots of revision 0, and the genesis that names both, in this order.

Revision 0 follows from the spec's seed, so that creating a run again after a failure makes the same objects; only the
genesis decides, by its conditional put, that the run exists.
"""

from __future__ import annotations

from dataclasses import dataclass

from common import keys
from common.clock import Clock
from common.errors import OperatorError
from common.identity import Signer
from common.merge.outer import OuterState
from common.model.init import init_vector
from common.model.layout import weights_hash
from common.model.shards import plan_shards
from common.model.snapshot import encode_snapshot
from common.records import ObjectRef
from common.runlog.casput import Patience, put_once
from common.runlog.entries import Genesis, ShardState
from common.runlog.materialise import pack
from common.runlog.recompute import hash_outer
from common.runlog.state import RunState
from common.runlog.writer import LogWriter, NonceSource, random_nonce
from common.spec import RunSpec, encode_spec, spec_hash
from common.store.port import ObjectStore
from common.units import Revision, ShardId, sha256_hex


@dataclass(frozen=True)
class FirstShard:
    """One shard of revision 0, and the snapshot to store."""

    state: ShardState
    key: str
    snapshot: bytes


def first_shard(spec: RunSpec, shard: ShardId) -> FirstShard:
    """Revision 0 of one shard, as the spec's seed makes it, with an outer state of zeros."""
    layers = plan_shards(spec.model, spec.num_shards)[shard]
    weights = init_vector(spec.model, layers)
    outer = OuterState.zero(len(weights), spec.outer.momentum)
    data = encode_snapshot(spec.model, layers, pack(weights, outer))
    ref = ObjectRef(sha256_hex(data), len(data))
    state = ShardState(shard, weights_hash(weights), hash_outer(outer), update=None, snapshot=ref)
    return FirstShard(state, keys.snapshot_key(spec.run, Revision(0), shard, ref.sha256), data)


def create_run(
    store: ObjectStore,
    spec: RunSpec,
    owner: Signer,
    clock: Clock,
    nonce_source: NonceSource = random_nonce,
    patience: Patience | None = None,
) -> RunState:
    """Store the spec, revision 0 and the genesis; the state after it.

    Raises ``OperatorError`` when the signer is not the owner or the name belongs to a run with another spec,
    ``Rejected('run_exists')`` when the run has begun, and ``Retryable``.
    """
    if owner.hotkey != spec.owner:
        raise OperatorError(f"the spec names {spec.owner} as owner, but the key given is {owner.hotkey}")
    patience = patience or Patience()
    if not put_once(store, keys.spec_key(spec.run), encode_spec(spec), None, patience).mine:
        raise OperatorError(f"a run called {spec.run} with another spec is in this bucket; choose another name")
    states = []
    for shard in range(spec.num_shards):
        first = first_shard(spec, ShardId(shard))
        put_once(store, first.key, first.snapshot, None, patience)
        states.append(first.state)
    writer = LogWriter(store, spec, owner, clock, nonce_source, patience)
    return writer.begin(Genesis(spec_hash(spec), tuple(states)), f"run {spec.run} begins")
