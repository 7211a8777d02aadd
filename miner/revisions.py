"""The revision that a miner holds: advanced by one update at a time, or built anew; its hash always proved.

Invariant: what is returned has the weights hash that the log committed for the head. Advancing costs one small
download a round; whoever was away replays the updates since, or takes a snapshot, whichever is less to download.
"""

from __future__ import annotations

from dataclasses import dataclass

from loguru import logger

from common.model.layout import Vector
from common.runlog.catchup import At
from common.runlog.materialise import ShardWeights, materialise
from common.runlog.state import RunState
from common.store.port import StartReader
from common.units import Revision, Sha256, ShardId

SHARD = ShardId(0)


@dataclass(frozen=True)
class Held:
    """Proved weights."""

    revision: Revision
    sha256: Sha256
    """Hash of the whole revision, as manifests and heartbeats name it."""
    shard: ShardWeights

    @property
    def weights(self) -> Vector:
        return self.shard.weights


def bring_to_head(reader: StartReader, state: RunState, held: Held | None) -> Held:
    """The head's weights, by the way that is the least to download; what is held helps if it is an ancestor's. Blocks.

    Raises ``Rejected('revision_unavailable')`` and ``Retryable``.
    """
    start = _start(state, held)
    follows = start is not None and start.revision in (state.head, state.head_node.parent)
    log = logger.bind(event="catch_up")
    built = materialise(reader, state, state.head, [SHARD], start, log.debug if follows else log.info)
    for note in built.notes:
        logger.warning("{}", note)
    return Held(state.head, state.head_node.sha256, built.shards[0])


def _start(state: RunState, held: Held | None) -> At[ShardWeights] | None:
    """What is held, if the head descends from it."""
    if held is None:
        return None
    node = next((node for node in state.lineage(state.head) if node.revision == held.revision), None)
    if node is None or node.sha256 != held.sha256:
        logger.warning("the head does not descend from revision {}, which is held", held.revision)
        return None
    return At(held.revision, held.shard)
