"""Replay: from the bytes of the log's slots to the state of the run, and nothing else.

Pure: no clock, no IO. Invariants:

- Every prefix of a log that holds a genesis is a valid state, and ``replay`` equals ``begin`` followed by ``apply``.
- An entry that breaks a rule is void: it changes nothing but the place of the next slot and the hash that the next
  entry must name, so that all readers skip the same entries for the same typed reason. Only a bad genesis is an error.

What the rules of each kind of entry are stands in ``rules.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from common.errors import Rejected
from common.runlog.entries import (
    NO_PREVIOUS,
    Entry,
    EntryData,
    Gc,
    Genesis,
    LeaderChanged,
    Paused,
    Resumed,
    RevisionCommitted,
    RolledBack,
    RoundAborted,
    RoundFrozen,
    RoundOpened,
    decode_entry,
)
from common.runlog.owned import OWNED, owned_effect
from common.runlog.retention import with_gc
from common.runlog.rules import CONTENT_FAILURES, check_entry, check_shards
from common.runlog.state import Leadership, OpenRound, Pause, Restart, RevisionNode, RunState, Void
from common.spec import RunSpec, spec_hash
from common.units import Revision, RoundId, Sha256, sha256_hex


@dataclass(frozen=True)
class Step:
    """What one slot did to the state."""

    state: RunState
    """The state after the slot."""
    entry: Entry | None
    """The slot's entry; None when its bytes are not one."""
    void: Void | None
    """Why the slot counts for nothing; None when it counts."""


def begin(spec: RunSpec, slot: bytes) -> RunState:
    """The state after the genesis.

    Raises ``Rejected`` with the decoder's code, or ``bad_genesis``: without a beginning there is no run.
    """
    entry = decode_entry(slot, spec.run)
    genesis = entry.data
    if not isinstance(genesis, Genesis):
        raise Rejected("bad_genesis", f"the log begins with {entry.kind} instead of genesis")
    if entry.signer != spec.owner:
        raise Rejected("bad_genesis", "the genesis is not signed by the owner whom the spec names")
    if (entry.seq, entry.prev, entry.term) != (0, NO_PREVIOUS, 0):
        raise Rejected("bad_genesis", "the genesis has seq 0, term 0 and no previous entry")
    if genesis.spec_sha256 != spec_hash(spec):
        raise Rejected("bad_genesis", "the genesis belongs to another spec")
    problem = check_shards(spec, genesis.shards, first=True)
    if problem:
        raise Rejected("bad_genesis", problem)
    root = RevisionNode(Revision(0), None, None, genesis.shards, tokens_merged=0, seq=0)
    return RunState(spec, 1, sha256_hex(slot), {root.revision: root}, head=root.revision, next_round=RoundId(0))


def apply(state: RunState, slot: bytes) -> Step:
    """Read the bytes of slot ``state.next_seq``. Total: whatever the bytes are, the next state is valid."""
    try:
        entry = decode_entry(slot, state.spec.run)
    except Rejected as error:
        return _void(state, slot, None, error)
    try:
        return Step(apply_entry(state, entry), entry, None)
    except Rejected as error:
        return _void(state, slot, entry, error)


def apply_entry(state: RunState, entry: Entry) -> RunState:
    """The state after an entry that was parsed already. Raises ``Rejected`` as ``check_entry``."""
    check_entry(state, entry)
    return replace(_effect(state, entry), next_seq=state.next_seq + 1, head_sha256=entry.slot_sha256)


def history(spec: RunSpec, slots: Iterable[bytes]) -> Iterator[Step]:
    """One step for each slot, the genesis first: what ``brigade run log`` prints. Raises as ``begin``."""
    state: RunState | None = None
    for slot in slots:
        step = Step(begin(spec, slot), decode_entry(slot, spec.run), None) if state is None else apply(state, slot)
        state = step.state
        yield step


def replay(spec: RunSpec, slots: Iterable[bytes]) -> RunState:
    """The state after all ``slots``, in order from 0. Raises as ``begin``, and ``no_genesis`` for an empty log."""
    state: RunState | None = None
    for step in history(spec, slots):
        state = step.state
    if state is None:
        raise Rejected("no_genesis", "the log is empty: the owner makes the first entry with `brigade run create`")
    return state


def _advance(state: RunState, slot: bytes) -> RunState:
    return replace(state, next_seq=state.next_seq + 1, head_sha256=sha256_hex(slot))


def _void(state: RunState, slot: bytes, entry: Entry | None, error: Rejected) -> Step:
    void = Void(state.next_seq, error.code, error.message, entry.signer if entry else None)
    return Step(replace(_advance(state, slot), voids=(*state.voids, void)), entry, void)


def _effect(state: RunState, entry: Entry) -> RunState:
    """What a valid entry changes, but for its place in the chain."""
    if isinstance(entry.data, OWNED):
        return owned_effect(state, entry)
    return _EFFECTS[type(entry.data)](state, entry, entry.data)


def _lead(state: RunState, entry: Entry, data: LeaderChanged) -> RunState:
    leadership = Leadership(entry.term, entry.signer, data.instance, entry.seq)
    return replace(state, leaders=(*state.leaders, leadership))


def _open(state: RunState, entry: Entry, data: RoundOpened) -> RunState:
    opened = OpenRound(data.round, data.base_revision, entry.at_ms)
    return replace(state, open_round=opened, turned_seq=entry.seq, next_round=RoundId(data.round + 1))


def _freeze(state: RunState, entry: Entry, data: RoundFrozen) -> RunState:
    assert state.open_round is not None
    frozen = replace(state.open_round, plan=data, plan_sha256=entry.slot_sha256, frozen_seq=entry.seq)
    return replace(state, open_round=frozen)


def _abort(state: RunState, entry: Entry, data: RoundAborted) -> RunState:
    failures = (*state.failures, data.code) if data.code in CONTENT_FAILURES else state.failures
    state = _obey(state, data.command_sha256)
    aborted = state.rounds_aborted + 1
    return replace(state, open_round=None, turned_seq=entry.seq, rounds_aborted=aborted, failures=failures)


def _pause(state: RunState, entry: Entry, data: Paused) -> RunState:
    pause = Pause(entry.seq, data.code, data.evidence, entry.at_ms)
    return replace(_obey(state, data.command_sha256), paused=pause, switched_seq=entry.seq)


def _resume(state: RunState, entry: Entry, data: Resumed) -> RunState:
    state = replace(_obey(state, data.command_sha256), paused=None, failures=(), switched_seq=entry.seq)
    state = replace(state, turned_seq=entry.seq)
    if not data.cold:
        return state
    return replace(state, restarts=(*state.restarts, Restart(entry.seq, state.head, state.next_round, "cold")))


def _roll_back(state: RunState, entry: Entry, data: RolledBack) -> RunState:
    """The tree keeps all revisions, and their numbers are never used again."""
    restart = Restart(entry.seq, data.revision, state.next_round, "rollback")
    state = replace(_obey(state, data.command_sha256), turned_seq=entry.seq)
    return replace(state, head=data.revision, deferred=(), failures=(), restarts=(*state.restarts, restart))


def _collect(state: RunState, entry: Entry, data: Gc) -> RunState:
    return with_gc(state, data)


def _obey(state: RunState, command: Sha256 | None) -> RunState:
    return state if command is None else replace(state, obeyed=state.obeyed | {command})


def _commit(state: RunState, entry: Entry, data: RevisionCommitted) -> RunState:
    opened, parent = state.open_round, state.revisions[data.parent]
    assert opened is not None
    assert opened.plan is not None
    accepted = ((m.hotkey, m.registered_block) for m in opened.plan.members if m.decision == "accepted")
    node = RevisionNode(
        data.revision,
        data.parent,
        data.round,
        data.shards,
        data.tokens_merged,
        entry.seq,
        opened.frozen_seq,
        opened.plan_sha256,
        first_step=parent.first_step + state.spec.inner.steps_of(parent.revision),
        from_reset=state.resets_outer,
        merged_bytes=_merged_bytes(state.spec, opened.plan),
        reduced=data.reduced,
    )
    return replace(
        state,
        open_round=None,
        turned_seq=entry.seq,
        head=node.revision,
        revisions={**state.revisions, node.revision: node},
        rounds_committed=state.rounds_committed + 1,
        tokens_merged=state.tokens_merged + node.tokens_merged,
        deferred=tuple(member for member in opened.plan.members if member.decision == "deferred"),
        merged=state.merged.union(accepted),
        failures=(),
    )


def _merged_bytes(spec: RunSpec, plan: RoundFrozen) -> tuple[int, ...]:
    sizes = [0] * spec.num_shards
    for member in plan.members:
        if member.decision == "accepted":
            sizes[member.shard] += member.delta.size_bytes
    return tuple(sizes)


_EFFECTS: Mapping[type[EntryData], Callable[[RunState, Entry, Any], RunState]] = {
    LeaderChanged: _lead,
    RoundOpened: _open,
    RoundFrozen: _freeze,
    RevisionCommitted: _commit,
    RoundAborted: _abort,
    Paused: _pause,
    Resumed: _resume,
    RolledBack: _roll_back,
    Gc: _collect,
}
