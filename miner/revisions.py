"""The revision that a miner holds: advanced by one update at a time, or built anew; its hash always proved.

Invariant: what is returned has the weights hash that the log committed for the head. Advancing costs one small
download a round; where an update is missing or wrong, the weights are built from the nearest snapshot instead.
"""

from __future__ import annotations

from dataclasses import dataclass

from loguru import logger

from common.errors import Rejected
from common.model.layout import Vector
from common.runlog.materialise import ShardWeights, advance, materialise
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
    """The head's weights, from those held if they are an ancestor's. Blocks.

    Raises ``Rejected('revision_unavailable')`` and ``Retryable``.
    """
    if held is not None:
        try:
            return _advanced(reader, state, held)
        except Rejected as error:
            logger.warning("can't go on from revision {} ({}); building the head anew", held.revision, error)
    built = materialise(reader, state, state.head, [SHARD])
    for note in built.notes:
        logger.warning("{}", note)
    return Held(state.head, state.head_node.sha256, built.shards[0])


def _advanced(reader: StartReader, state: RunState, held: Held) -> Held:
    path = state.lineage(state.head)
    start = next((i for i, node in enumerate(path) if node.sha256 == held.sha256), None)
    if start is None or path[start].revision != held.revision:
        raise Rejected("other_branch", "the head does not descend from it")
    shard = held.shard
    for node in path[start + 1 :]:
        shard = advance(reader, state, node, shard)
    return Held(state.head, state.head_node.sha256, shard)
