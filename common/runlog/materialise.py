"""The weights of a revision, by the way that is the least to download, with every hash proved.

This is how a miner joins and catches up, and how a revision is exported. It needs only objects that anyone may read:
snapshots and updates, not deltas; and of a snapshot only the weights, unless the run has an outer momentum. Invariant:
what is returned has the weights hash that the log committed. Which way is taken, and what happens when an object on it
is missing or wrong, is in ``catchup.py``; every object passed over is said.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from common import keys
from common.codec.container import encoded_size
from common.codec.params import F32, update_params
from common.errors import Rejected
from common.merge.outer import OuterState
from common.model.layout import layout_of, weights_hash
from common.model.shards import plan_shards
from common.model.snapshot import Snapshot, decode_snapshot, decode_weights, snapshot_size_bytes, weights_start_bytes
from common.runlog.catchup import UNAVAILABLE, At, Stage, reach
from common.runlog.recompute import apply_update, hash_outer
from common.runlog.state import RevisionNode, RunState
from common.spec import RunSpec
from common.store.port import ObjectReader, StartReader
from common.units import Revision, ShardId

Say = Callable[[str], None]


def unheard(text: str) -> None:
    """For callers whom the way does not concern."""


@dataclass(frozen=True)
class ShardWeights:
    """One shard of a revision, and what the next outer step needs."""

    shard: ShardId
    weights: F32
    momentum: F32 | None
    """Nesterov's v; None in a run without outer momentum."""


@dataclass(frozen=True)
class Materialised:
    """A whole revision, or the shards that were asked for."""

    revision: Revision
    shards: tuple[ShardWeights, ...]
    notes: tuple[str, ...]
    """What was missing or wrong on the way, in plain words."""


def materialise(
    reader: StartReader,
    state: RunState,
    revision: Revision,
    shards: Sequence[ShardId] | None = None,
    held: At[ShardWeights] | None = None,
    say: Say = unheard,
) -> Materialised:
    """The weights of ``revision``: all shards, or those given; ``held`` are proved weights of the only one of these.

    ``say`` is told which way is taken, and what it and the other one cost. Raises ``Rejected('revision_unavailable')``
    when objects are missing or wrong and no other way leads there, ``Rejected('unknown_revision')``, and ``Retryable``
    when the store stays away.
    """
    if revision not in state.revisions:
        raise Rejected("unknown_revision", f"the log knows revisions 0 to {state.next_revision - 1}, not {revision}")
    if gone := state.why_gone(revision):
        raise Rejected(UNAVAILABLE, gone)
    wanted = tuple(range(state.spec.num_shards) if shards is None else shards)
    if held is not None and wanted != (held.value.shard,):
        raise ValueError("what is held of one shard helps with that one only")
    notes: list[str] = []
    built = tuple(_materialise_shard(reader, state, revision, ShardId(shard), held, say, notes) for shard in wanted)
    return Materialised(revision, built, tuple(notes))


def materialise_newest(reader: StartReader, state: RunState, shards: Sequence[ShardId] | None = None) -> Materialised:
    """The head, or its nearest ancestor whose objects are all there; the notes say why. Raises as ``materialise``."""
    notes: list[str] = []
    for node in reversed(state.lineage(state.head)):
        try:
            found = materialise(reader, state, node.revision, shards)
        except Rejected as error:
            notes.append(f"revision {node.revision} can't be had: {error.message}")
            continue
        return Materialised(found.revision, found.shards, (*notes, *found.notes))
    raise Rejected(UNAVAILABLE, "; ".join(notes))


def advance(reader: ObjectReader, state: RunState, node: RevisionNode, base: ShardWeights) -> ShardWeights:
    """From the parent's weights to those of ``node``, by its update. ``base`` is left alone.

    Raises ``Rejected``: ``object_missing``, the reader's and the decoder's codes, ``wrong_weights``.
    """
    made = node.shards[base.shard]
    if made.update is None or node.round is None or node.parent is None:
        raise ValueError("revision 0 is made by no update")
    size = encoded_size(len(base.weights), update_params(state.spec.codec, node.parent))
    key = keys.update_key(state.run, node.round, base.shard, made.update.sha256)
    data = reader.fetch(key, max_bytes=size, sha256=made.update.sha256, size_bytes=size)
    momentum = base.momentum
    if momentum is not None and node.from_reset:
        momentum = np.zeros_like(momentum)
    weights, momentum = apply_update(state.spec, node.parent, data, base.weights, momentum)
    if weights_hash(weights) != made.weights_sha256:
        raise Rejected("wrong_weights", f"the update of revision {node.revision} leads to other weights than committed")
    return ShardWeights(base.shard, weights, momentum)


def load_snapshot(
    reader: ObjectReader, spec: RunSpec, node: RevisionNode, shard: ShardId
) -> tuple[F32, OuterState] | None:
    """Weights and outer state of a shard as the log committed them; None when no snapshot was stored.

    Raises ``Rejected``: ``object_missing``, the reader's and the decoder's codes, ``wrong_weights``, ``wrong_outer``.
    """
    made = node.shards[shard]
    if made.snapshot is None:
        return None
    layers = plan_shards(spec.model, spec.num_shards)[shard]
    data = reader.fetch(
        keys.snapshot_key(spec.run, node.revision, shard, made.snapshot.sha256),
        max_bytes=snapshot_size_bytes(spec.model, layers),
        sha256=made.snapshot.sha256,
        size_bytes=made.snapshot.size_bytes,
    )
    weights, outer = _unpack(spec, decode_snapshot(spec.model, layers, data))
    if weights_hash(weights) != made.weights_sha256:
        raise Rejected("wrong_weights", f"the snapshot of revision {node.revision} holds other weights than committed")
    if hash_outer(outer) != made.outer_sha256:
        raise Rejected("wrong_outer", f"the snapshot of revision {node.revision} holds another outer state")
    return weights, outer


def load_start(reader: StartReader, spec: RunSpec, node: RevisionNode, shard: ShardId) -> ShardWeights | None:
    """What training on a shard begins with; None when no snapshot was stored. Raises as ``load_snapshot``.

    The weights' own hash proves them, so nothing behind them is read; a momentum is proved only by the whole object.
    """
    made = node.shards[shard]
    if made.snapshot is None:
        return None
    if spec.outer.momentum:
        found = load_snapshot(reader, spec, node, shard)
        return None if found is None else ShardWeights(shard, found[0], found[1].momentum)
    layers = plan_shards(spec.model, spec.num_shards)[shard]
    start = reader.fetch_start(
        keys.snapshot_key(spec.run, node.revision, shard, made.snapshot.sha256),
        start_bytes=weights_start_bytes(spec.model, layers),
        size_bytes=made.snapshot.size_bytes,
    )
    weights = decode_weights(spec.model, layers, start)
    if weights_hash(weights) != made.weights_sha256:
        raise Rejected("wrong_weights", f"the snapshot of revision {node.revision} holds other weights than committed")
    return ShardWeights(shard, weights, None)


def pack(weights: F32, outer: OuterState) -> Snapshot:
    """What a snapshot of a shard holds."""
    return Snapshot(weights, outer.momentum, outer.residual)


def _unpack(spec: RunSpec, snapshot: Snapshot) -> tuple[F32, OuterState]:
    if (snapshot.momentum is None) != (spec.outer.momentum == 0) or snapshot.residual is None:
        raise Rejected("wrong_outer", "the snapshot does not hold the outer state that the spec calls for")
    return snapshot.weights, OuterState(snapshot.momentum, snapshot.residual)


def stages(
    state: RunState,
    path: Sequence[RevisionNode],
    shard: ShardId,
    snapshot_bytes: int,
    step_bytes: Callable[[RevisionNode], int],
) -> tuple[Stage, ...]:
    """The stages of a lineage, as the log has them, but for what it has named for deletion: that may be gone while it
    is read. Sizes are those that the spec calls for."""
    return tuple(
        Stage(
            node.revision,
            None if node.parent is None or node.revision <= state.floor else step_bytes(node),
            None if node.shards[shard].snapshot is None or 0 < node.revision < state.floor else snapshot_bytes,
        )
        for node in path
    )


def _materialise_shard(
    reader: StartReader,
    state: RunState,
    revision: Revision,
    shard: ShardId,
    held: At[ShardWeights] | None,
    say: Say,
    notes: list[str],
) -> ShardWeights:
    spec, path = state.spec, state.lineage(revision)
    layers = plan_shards(spec.model, spec.num_shards)[shard]
    count = layout_of(spec.model, layers).total
    size = snapshot_size_bytes if spec.outer.momentum else weights_start_bytes

    def load(start: Revision) -> ShardWeights:
        found = load_start(reader, spec, state.revisions[start], shard)
        assert found is not None, "only snapshots that the log names are on a way"
        return found

    return reach(
        stages(state, path, shard, size(spec.model, layers), lambda node: _update_bytes(spec, node, count)),
        held,
        load,
        lambda step, base: advance(reader, state, state.revisions[step], base),
        say,
        notes,
    )


def _update_bytes(spec: RunSpec, node: RevisionNode, count: int) -> int:
    assert node.parent is not None, "revision 0 is made by no update"
    return encoded_size(count, update_params(spec.codec, node.parent))
