"""A new leader makes the snapshots that the log names and the bucket lacks: the same bytes, under the same hash.

Invariant: only what has the hash that the log committed is put. Blocking.
"""

from __future__ import annotations

from collections.abc import Callable

from loguru import logger

from common import keys
from common.errors import Rejected
from common.model.shards import plan_shards
from common.model.snapshot import encode_snapshot
from common.runlog.materialise import pack
from common.runlog.remerge import rebuild
from common.runlog.state import RevisionNode, RunState
from common.store.port import ObjectReader, ObjectStore
from common.units import ShardId, sha256_hex


def mend(store: ObjectStore, reader: ObjectReader, run: RunState, sure: Callable[[], bool]) -> int:
    """Put the missing snapshots of the head's lineage, as far as the floor; how many there were.

    One that can't be made again is said. Raises ``Retryable`` when the storage stays away.
    """
    made = 0
    for node in (node for node in run.lineage(run.head) if node.revision >= run.floor):
        for shard in range(run.spec.num_shards):
            if _is_missing(store, run, node, ShardId(shard)):
                made += _make(store, reader, run, node, ShardId(shard), sure)
    return made


def _key(run: RunState, node: RevisionNode, shard: ShardId) -> str | None:
    snapshot = node.shards[shard].snapshot
    return None if snapshot is None else keys.snapshot_key(run.run, node.revision, shard, snapshot.sha256)


def _is_missing(store: ObjectStore, run: RunState, node: RevisionNode, shard: ShardId) -> bool:
    key = _key(run, node, shard)
    return key is not None and store.head(key) is None


def _make(
    store: ObjectStore,
    reader: ObjectReader,
    run: RunState,
    node: RevisionNode,
    shard: ShardId,
    sure: Callable[[], bool],
) -> bool:
    snapshot, key = node.shards[shard].snapshot, _key(run, node, shard)
    assert snapshot is not None
    assert key is not None
    try:
        memory, _ = rebuild(reader, run, node.revision, shard)
    except Rejected as refusal:
        logger.error("the snapshot of revision {} is missing and can't be made again: {}", node.revision, refusal)
        return False
    layers = plan_shards(run.spec.model, run.spec.num_shards)[shard]
    body = encode_snapshot(run.spec.model, layers, pack(memory.weights, memory.outer))
    if sha256_hex(body) != snapshot.sha256 or not sure():
        return False
    store.put(key, body)
    said = logger.bind(event="mended", revision=int(node.revision))
    said.info("the snapshot of revision {} is made again", node.revision)
    return True
