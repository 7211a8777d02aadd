"""A conviction checked again by anybody, from the bucket and the conviction's own bytes: nobody's word is taken.

The log is replayed from its genesis, so that the accused slot is proved by the chain of hashes, and the accused led its
term by the log's rules. Then each kind is judged anew by the code that found it. Blocking.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from common.convictions import MAX_CODE, Conviction, MergedWrongly, ReducedWrongly, RejectedFalsely
from common.errors import Rejected
from common.runlog.entries import Entry, RoundFrozen
from common.runlog.leftout import judge
from common.runlog.reader import LogReader
from common.runlog.remerge import Compared, compare, rebuild
from common.runlog.replay import Step
from common.runlog.state import RunState
from common.store.port import ObjectReader
from common.units import Revision, ShardId
from validator.audits.rejections import look_again


@dataclass(frozen=True)
class Rechecked:
    """Whether a conviction is proved, and what was found."""

    proved: bool
    why: str


def recheck(reader: ObjectReader, log: LogReader, conviction: Conviction) -> Rechecked:
    """Judge again. Raises ``Retryable`` when the store stays away, and ``Rejected`` for a log that can't be read."""
    found = _accused(log.steps(), conviction)
    if found is None:
        return Rechecked(False, f"slot {conviction.seq} of the log is not the entry that it accuses")
    state, entry = found
    if entry.signer != conviction.leader:
        return Rechecked(False, f"slot {conviction.seq} is {entry.signer}'s, not {conviction.leader}'s")
    try:
        return _judge(reader, state, entry, conviction)
    except Rejected as refusal:
        return Rechecked(False, f"it can't be checked from what the bucket holds: {refusal}")


def _accused(steps: Iterator[Step], conviction: Conviction) -> tuple[RunState, Entry] | None:
    """The accused entry, if it counts, and the state after it."""
    for step in steps:
        if step.entry is not None and step.entry.seq == conviction.seq:
            counts = step.void is None and step.entry.slot_sha256 == conviction.slot_sha256
            return (step.state, step.entry) if counts else None
    return None


def _judge(reader: ObjectReader, state: RunState, entry: Entry, conviction: Conviction) -> Rechecked:
    if conviction.left_out is not None:
        judged = judge(conviction.left_out.opened(state.run), entry)
        return Rechecked(judged.guilty, judged.why)
    if conviction.merged_wrongly is not None:
        return _merged(reader, state, entry, conviction.merged_wrongly)
    if conviction.reduced_wrongly is not None:
        return _reduced(reader, state, entry, conviction.reduced_wrongly)
    assert conviction.rejected_falsely is not None, "a conviction has one kind"
    return _rejected(reader, state, entry, conviction.rejected_falsely)


def _rejected(reader: ObjectReader, state: RunState, entry: Entry, fault: RejectedFalsely) -> Rechecked:
    members = entry.data.members if isinstance(entry.data, RoundFrozen) and entry.data.attempt == 0 else ()
    place = (fault.shard, fault.hotkey, fault.made_for, fault.delta_sha256, fault.code)
    for member in members:
        if (member.shard, member.hotkey, member.round, member.delta.sha256, member.code[:MAX_CODE]) == place:
            again = look_again(reader, state.spec, member)
            return Rechecked(again.finding == "false", again.why)
    return Rechecked(False, f"slot {entry.seq} does not reject such a delta")


def _reduced(reader: ObjectReader, state: RunState, entry: Entry, fault: ReducedWrongly) -> Rechecked:
    mean = fault.mean
    if not 0 <= mean.shard < state.spec.num_shards:
        return Rechecked(False, f"there is no shard {mean.shard}")
    wrong = [found for one in _compared(reader, state, entry, fault.revision) for found in one.wrong_means]
    if mean not in wrong:
        return Rechecked(False, f"slot {entry.seq} took no such mean of {mean.hotkey}, or it is right")
    told = f"its signed mean of partition {mean.partition} of shard {mean.shard} is {mean.found[:16]}…"
    return Rechecked(True, f"{told}, the plan's deltas give {mean.computed[:16]}…")


def _compared(reader: ObjectReader, state: RunState, entry: Entry, revision: Revision) -> list[Compared]:
    """Of each shard what merging the revision again gives; none when the slot does not commit it."""
    node = state.revisions.get(revision)
    if node is None or node.seq != entry.seq or node.parent is None:
        return []
    shards = (ShardId(shard) for shard in range(state.spec.num_shards))
    return [compare(reader, state, node, rebuild(reader, state, node.parent, shard)[0]) for shard in shards]


def _merged(reader: ObjectReader, state: RunState, entry: Entry, fault: MergedWrongly) -> Rechecked:
    compared = _compared(reader, state, entry, fault.revision)
    if not compared:
        return Rechecked(False, f"slot {entry.seq} does not commit revision {fault.revision}")
    differences = [difference for one in compared for difference in one.differences]
    if not differences:
        return Rechecked(False, f"merging revision {fault.revision} again gives every hash that was committed")
    told = ", ".join(f"{one.what.replace('_', ' ')} of shard {one.shard}" for one in differences)
    return Rechecked(True, f"merging revision {fault.revision} again gives another {told}")
