"""Convictions checked again by anybody, from the bucket and their own bytes: nobody's word is taken.

The log is replayed from its genesis, once for all of them, so that each accused slot is proved by the chain of hashes,
and the accused led its term by the log's rules. Then each kind is judged anew by the code that found it. Invariant: the
same fault is looked at once, and a revision merged again once, however many convictions name it. Blocking.

One whose evidence a ``gc`` entry has named, and that is gone, is neither proved nor false (``evidence.py``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from common.convictions import MAX_CODE, Conviction, MergedWrongly, ReducedWrongly, RejectedFalsely
from common.errors import Rejected
from common.model.layout import run_layouts
from common.runlog.entries import Entry, PlanMember, RoundFrozen
from common.runlog.leftout import judge
from common.runlog.reader import LogReader
from common.runlog.reduced import why_not_wrong
from common.runlog.remerge import Compared, compare, read_delta, rebuild
from common.runlog.replay import Step
from common.runlog.state import Collection, RunState
from common.store.port import ObjectReader
from common.units import Revision, ShardId
from validator.audits.evidence import EvidenceReader, deleted_by
from validator.audits.rejections import look_again


@dataclass(frozen=True)
class Rechecked:
    """Whether a conviction is proved, and what was found."""

    proved: bool
    why: str
    deleted_by: Collection | None = None
    """The ``gc`` entry by which retention has deleted the evidence: then it says nothing of anybody."""


@dataclass
class _Slot:
    """An accused entry that counts, and the state after it."""

    reader: EvidenceReader
    state: RunState
    entry: Entry
    judged: dict[object, tuple[Rechecked, list[str]]] = field(default_factory=dict)
    """By what is accused: many convictions may say the same."""

    def compared(self, revision: Revision) -> list[Compared]:
        """Of each shard what merging the revision again gives; none when the slot does not commit it."""
        node = self.state.revisions.get(revision)
        if node is None or node.seq != self.entry.seq or node.parent is None:
            return []
        reader, state, parent = self.reader, self.state, node.parent
        shards = (ShardId(shard) for shard in range(state.spec.num_shards))
        bases = (rebuild(reader, state, parent, shard)[0] for shard in shards)
        return [compare(reader, state, node, base) for base in bases]


def recheck(reader: ObjectReader, log: LogReader, conviction: Conviction) -> Rechecked:
    """Judge one again. Raises as ``recheck_all``."""
    return recheck_all(reader, log, [conviction])[0]


def recheck_all(reader: ObjectReader, log: LogReader, convictions: Sequence[Conviction]) -> list[Rechecked]:
    """Judge each again, in order, while the log is replayed as far as the last accused slot.

    Raises ``Retryable`` when the store stays away, and ``Rejected`` for a log that can't be read.
    """
    waiting: dict[int, list[int]] = defaultdict(list)
    for index, conviction in enumerate(convictions):
        waiting[conviction.seq].append(index)
    found: dict[int, Rechecked] = {}
    gone: dict[int, list[str]] = {}
    """Of those that can't be checked for nothing but missing objects: which. Entries of slots to come may name them."""
    steps: Iterator[Step] = log.steps() if waiting else iter(())
    for step in steps:
        seq = step.state.next_seq - 1
        accusers = waiting.pop(seq, [])
        if accusers and step.void is None and step.entry is not None:
            slot = _Slot(EvidenceReader(reader), step.state, step.entry)
            for index in accusers:
                found[index], missing = _recheck(slot, convictions[index])
                if missing:
                    gone[index] = missing
        if not waiting and not gone:
            break
    for index, missing in gone.items():
        entry = deleted_by(step.state, missing)
        if entry is not None:
            found[index] = _deleted(entry, missing)
    return [found.get(index) or _not_the_entry(one) for index, one in enumerate(convictions)]


def _deleted(entry: Collection, missing: list[str]) -> Rechecked:
    told = (
        f"what it rests on was deleted by retention: slot {entry.seq}, a gc entry that keeps what revisions from "
        f"{entry.gc.floor} on need, names {missing[0]}"
    )
    more = f" and {len(missing) - 1} more objects" if len(missing) > 1 else ""
    return Rechecked(False, told + more, entry)


def _not_the_entry(conviction: Conviction) -> Rechecked:
    return Rechecked(False, f"slot {conviction.seq} of the log is not the entry that it accuses")


def _recheck(slot: _Slot, conviction: Conviction) -> tuple[Rechecked, list[str]]:
    """Also the objects for whose absence alone it could not be judged."""
    if slot.entry.slot_sha256 != conviction.slot_sha256:
        return _not_the_entry(conviction), []
    if slot.entry.signer != conviction.leader:
        return Rechecked(False, f"slot {conviction.seq} is {slot.entry.signer}'s, not {conviction.leader}'s"), []
    what = _what(conviction)
    if what not in slot.judged:
        slot.judged[what] = _judge_once(slot, conviction)
    return slot.judged[what]


def _what(conviction: Conviction) -> object:
    """What it accuses of, whoever says so and in whichever words."""
    if conviction.merged_wrongly is not None:
        return conviction.merged_wrongly.revision
    if conviction.reduced_wrongly is not None:
        return conviction.reduced_wrongly.mean
    return conviction.rejected_falsely or conviction.left_out


def _judge_once(slot: _Slot, conviction: Conviction) -> tuple[Rechecked, list[str]]:
    slot.reader.failed.clear()
    try:
        return _judge(slot, conviction), []
    except Rejected as refusal:
        failed = slot.reader.failed
        missing = list(failed) if all(failed.values()) else []
        return Rechecked(False, f"it can't be checked from what the bucket holds: {refusal}"), missing


def _judge(slot: _Slot, conviction: Conviction) -> Rechecked:
    if conviction.left_out is not None:
        judged = judge(conviction.left_out.opened(slot.state.run), slot.entry)
        return Rechecked(judged.guilty, judged.why)
    if conviction.merged_wrongly is not None:
        return _merged(slot, conviction.merged_wrongly)
    if conviction.reduced_wrongly is not None:
        return _reduced(slot, conviction.reduced_wrongly)
    assert conviction.rejected_falsely is not None, "a conviction has one kind"
    return _rejected(slot, conviction.rejected_falsely)


def _rejected(slot: _Slot, fault: RejectedFalsely) -> Rechecked:
    entry = slot.entry
    members = entry.data.members if isinstance(entry.data, RoundFrozen) and entry.data.attempt == 0 else ()
    place = (fault.shard, fault.hotkey, fault.made_for, fault.delta_sha256, fault.code)
    for member in members:
        if (member.shard, member.hotkey, member.round, member.delta.sha256, member.code[:MAX_CODE]) == place:
            again = look_again(slot.reader, slot.state.spec, member)
            if again.finding == "undecided" and slot.reader.failed:
                raise Rejected("object_missing", again.why)
            return Rechecked(again.finding == "false", again.why)
    return Rechecked(False, f"slot {entry.seq} does not reject such a delta")


def _reduced(slot: _Slot, fault: ReducedWrongly) -> Rechecked:
    mean, plan, spec = fault.mean, slot.entry.data, slot.state.spec
    if not isinstance(plan, RoundFrozen) or not 0 <= mean.shard < spec.num_shards:
        return Rechecked(False, f"slot {slot.entry.seq} is no plan of such a shard")
    count = run_layouts(spec.model, spec.num_shards)[mean.shard].total

    def read(member: PlanMember) -> bytes:
        return read_delta(slot.reader, spec.run, member)

    why = why_not_wrong(slot.reader, spec, plan, slot.entry.slot_sha256, count, mean, read)
    if why:
        return Rechecked(False, why)
    return Rechecked(True, f"{mean.hotkey} signed {mean.found[:16]}…, the plan's deltas give {mean.computed[:16]}…")


def _merged(slot: _Slot, fault: MergedWrongly) -> Rechecked:
    compared = slot.compared(fault.revision)
    if not compared:
        return Rechecked(False, f"slot {slot.entry.seq} does not commit revision {fault.revision}")
    differences = [difference for one in compared for difference in one.differences]
    if not differences:
        return Rechecked(False, f"merging revision {fault.revision} again gives every hash that was committed")
    told = ", ".join(f"{one.what.replace('_', ' ')} of shard {one.shard}" for one in differences)
    return Rechecked(True, f"merging revision {fault.revision} again gives another {told}")
