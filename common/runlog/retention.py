"""What of a run stays in its bucket, and what the log's ``gc`` entries have named for deletion. Pure.

A ``gc`` entry raises the floor, the oldest revision that stays whole: a snapshot of the head's lineage from which every
later revision descends. All that only older revisions need goes: their snapshots, the updates, partition means and
reductions (the owners' words for these means) of the rounds up to the floor's, whether committed or aborted, and the
deltas of the rounds before its parent's round ended, with the manifests that nothing needs without them (``spent.py``).
So an entry names whole ranges of keys in a line, and every reader comes to the same set. What never goes: the snapshot
of revision 0, from which every validator takes the loss that the run began with, log, spec, commands, reports, the
manifests and receipts that plans named or left out, and whatever a revision from the floor on needs, with those that a
rollback left behind, the open round and what the last plan deferred. Invariants: the floor only rises; every revision
with a number from the floor on can be materialised, merged again and rolled back to; an entry that names more than the
spec allows is void.

When the objects may really go is not told by clocks of processes: the age of the entry's slot, by the storage's own
clock, must have passed ``delete_after_s``. No upload URL of such a round lives longer, so nothing comes back.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from common.keys import KeyParts
from common.runlog.entries import Gc
from common.runlog.state import Collection, RevisionNode, RunState
from common.spec import RunSpec
from common.store.port import MAX_PRESIGN_S
from common.units import Revision

FOLLOWERS_WINDOWS = 4
"""A miner that is behind holds the floor back, but by no more than so many times the revisions that are kept: then a
snapshot is less to download, and nobody keeps a bucket full by saying that he is behind."""
UPDATE_KINDS = frozenset({"update", "mean", "reduction"})


@dataclass(frozen=True)
class Due:
    """What the newest ``gc`` entry named and the one before did not: where to look for what is left."""

    seq: int
    """Slot of the entry."""
    rounds: range
    revisions: range


def next_gc(state: RunState, needed: Iterable[Revision] = ()) -> Gc | None:
    """The entry that the policy calls for now; None when nothing is to go.

    ``needed`` are revisions that must stay whole beside those that the spec keeps. A round may not be open.
    """
    limit = min([_limit(state), *needed])
    floors = [floor for floor in _floors(state) if floor <= limit]
    return _gc(state, floors[-1]) if floors else None


def with_gc(state: RunState, gc: Gc) -> RunState:
    """What the state will be when an entry has named this."""
    return replace(state, collections=(*state.collections, Collection(state.next_seq, gc)))


def held_back(state: RunState, held: Iterable[Revision]) -> list[Revision]:
    """Of the revisions that followers hold those that are near enough to be kept for them."""
    path = state.lineage(state.head)
    oldest = path[max(0, len(path) - FOLLOWERS_WINDOWS * state.spec.retention.revisions)].revision
    return [revision for revision in held if revision >= oldest]


def gc_problem(state: RunState, data: Gc) -> str:
    """Why an entry may not stand; empty when it may."""
    if data.floor not in _floors(state) or data.floor > _limit(state):
        return f"revision {data.floor} can't be the oldest that stays whole: the spec keeps what it would delete"
    return "" if data == _gc(state, data.floor) else "it names other rounds than its floor calls for"


def is_named(state: RunState, parts: KeyParts) -> bool:
    """Whether a ``gc`` entry has named the object at a key: then it may be gone. Of manifests ``spent.py`` tells."""
    return bool(state.collections) and _names(state.collections[-1].gc, parts)


def named_by(state: RunState, parts: KeyParts) -> Collection | None:
    """The first entry that has named the object at a key; None when there is none."""
    return next((entry for entry in state.collections if _names(entry.gc, parts)), None)


def due(state: RunState) -> Due | None:
    """Where the objects are that the newest entry named; None when there is no entry."""
    if not state.collections:
        return None
    last = state.collections[-1]
    first_round, first_revision = 0, 0
    if len(state.collections) > 1:
        before = state.collections[-2].gc
        first_round, first_revision = before.deltas_before, before.floor
    return Due(last.seq, range(first_round, last.gc.updates_before), range(first_revision, last.gc.floor))


def delete_after_s(spec: RunSpec) -> float:
    """From an entry to the deletion of what it names: the longest life of an upload URL, and the spec's grace."""
    longest_s = min(spec.round.train_deadline_s + spec.round.submit_deadline_s, MAX_PRESIGN_S)
    return longest_s + spec.retention.grace_s


def _names(gc: Gc, parts: KeyParts) -> bool:
    if parts.kind == "delta":
        return parts.round_id is not None and parts.round_id < gc.deltas_before
    if parts.kind in UPDATE_KINDS:
        return parts.round_id is not None and parts.round_id < gc.updates_before
    return parts.kind == "snapshot" and parts.revision is not None and 0 < parts.revision < gc.floor


def _gc(state: RunState, floor: Revision) -> Gc:
    node = state.revisions[floor]
    assert node.parent is not None, "the floor rises from revision 0"
    return Gc(floor, state.revisions[node.parent].first_round, node.first_round)


def _limit(state: RunState) -> Revision:
    """The newest revision that the spec lets the floor be."""
    kept, path = state.spec.retention, state.lineage(state.head)
    snapshots = [node.revision for node in path if _has_snapshot(node)]
    return min(path[-min(kept.revisions, len(path))].revision, snapshots[-min(kept.snapshots, len(snapshots))])


def _floors(state: RunState) -> list[Revision]:
    """Snapshots of the head's lineage above the floor from which all later revisions descend, in order."""
    path = state.lineage(state.head)
    own = {node.revision for node in path}
    joins: dict[Revision, Revision] = {}
    """Of each revision the newest of the head's lineage that it descends from."""
    for node in sorted(state.revisions.values(), key=lambda node: node.revision):
        joins[node.revision] = node.revision if node.parent is None or node.revision in own else joins[node.parent]
    found: list[Revision] = []
    earliest = state.head
    for revision in sorted(joins, reverse=True):
        if revision in own and revision <= earliest and _has_snapshot(state.revisions[revision]):
            found.append(revision)
        earliest = min(earliest, joins[revision])
    return [revision for revision in reversed(found) if revision > state.floor]


def _has_snapshot(node: RevisionNode) -> bool:
    return all(shard.snapshot is not None for shard in node.shards)
