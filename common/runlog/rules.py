"""The rules that make an entry valid, each with the typed code of its breach.

``check_entry`` raises ``Rejected`` with one of: ``wrong_seq``, ``wrong_prev`` (not this place in the chain);
``not_allowed`` (the run does not let the signer lead); ``stale_term``, ``future_term``, ``not_leader`` (leadership);
``bad_transition`` (not what may follow now); ``bad_plan``, ``no_quorum``, ``bad_revision`` (contents that contradict
the state). Replay turns each into a void.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import numpy as np

from common import keys
from common.errors import Rejected
from common.merge.damping import damping
from common.runlog.entries import (
    Entry,
    EntryData,
    Gc,
    Genesis,
    LeaderChanged,
    Paused,
    PlanMember,
    Resumed,
    RevisionCommitted,
    RolledBack,
    RoundAborted,
    RoundFrozen,
    RoundOpened,
    ShardState,
)
from common.runlog.owned import OWNED, check_owned
from common.runlog.reduced import check_reduced
from common.runlog.retention import gc_problem
from common.runlog.state import OpenRound, RunState
from common.spec import RunSpec
from common.units import Hotkey, Revision, RoundId, Sha256, ShardId, is_sha256

CONTENT_REFUSALS = frozenset({"bad_plan", "no_quorum", "bad_revision"})
"""What the entry itself contradicts: it will be refused again, whoever leads."""
CONTENT_FAILURES = frozenset({"loss_guard", "bad_merge", "all_rejected", "no_members", "bad_plan", "bad_revision"})
"""Codes of aborted rounds that say something of what was delivered, not of who was there."""
MAX_FAILURES = 3
"""Rounds aborted for their content, one after the other, before a person must look."""
MAX_ATTEMPTS = 3
"""Plans of one round."""
ORDERED = "ordered"
"""Code of what the owner ordered: of a pause, and of a round that was aborted."""
REFUSALS = CONTENT_REFUSALS | {
    *("wrong_seq", "wrong_prev", "not_allowed"),
    *("stale_term", "future_term", "not_leader", "bad_transition"),
}
"""Every code of ``check_entry``."""


def check_entry(state: RunState, entry: Entry) -> None:
    """Raise ``Rejected`` unless ``entry`` may stand in slot ``state.next_seq``."""
    if entry.seq != state.next_seq:
        raise Rejected("wrong_seq", f"entry {entry.seq} stands in slot {state.next_seq}")
    if entry.prev != state.head_sha256:
        raise Rejected("wrong_prev", "the entry follows other bytes than those of the previous slot")
    data = entry.data
    if isinstance(data, OWNED):
        return check_owned(state, entry)
    if entry.signer not in state.validators:
        raise Rejected("not_allowed", "the run does not let this hotkey lead")
    if isinstance(data, LeaderChanged):
        return _check_takeover(state, entry)
    _check_leader(state, entry)
    _CHECKS[type(data)](state, data)


def check_shards(spec: RunSpec, shards: tuple[ShardState, ...], first: bool) -> str:
    """What is wrong with a revision's shards, or nothing. ``first``: revision 0, made by no update."""
    if [shard.shard for shard in shards] != list(range(spec.num_shards)):
        return f"a revision names shards 0 to {spec.num_shards - 1}, each once and in order"
    for shard in shards:
        if (shard.update is None) is not first:
            return "every revision but the first names the update of each shard"
        if first and shard.snapshot is None:
            return "revision 0 names a snapshot of each shard"
        if not (is_sha256(shard.weights_sha256) and is_sha256(shard.outer_sha256)):
            return "a shard's hashes are 64 lowercase hex digits"
    return ""


def check_plan(state: RunState, plan: RoundFrozen) -> str:
    """What is wrong with a plan of the open round, or nothing."""
    places = [(member.shard, member.hotkey, member.round) for member in plan.members]
    if places != sorted(set(places)):
        return "members are ordered by shard, hotkey and round, each once"
    counted = [(m.shard, m.hotkey, m.base_revision) for m in plan.members if m.decision != "rejected"]
    if len(counted) != len(set(counted)):
        return "of one miner, shard and base a plan accepts or defers one submission"
    if plan.damping != plan_damping(state.spec, plan):
        return f"its damping is {plan.damping}, and its tokens call for {plan_damping(state.spec, plan)}"
    for member in plan.members:
        problem = _check_member(state, plan, member)
        if problem:
            return f"{problem} (shard {member.shard}, {member.hotkey[:48]})"
    missing = {_name(member) for member in state.deferred} - {_name(member) for member in plan.members}
    return "" if not missing else f"{len(missing)} deferred submissions are neither taken nor rejected"


def plan_tokens(spec: RunSpec, plan: RoundFrozen) -> int:
    """Validated tokens that a commit of the plan merges; a late one counts for ``late_weight``."""
    accepted = (member for member in plan.members if member.decision == "accepted")
    return sum(counted_tokens(spec, plan.base_revision, member) for member in accepted)


def plan_damping(spec: RunSpec, plan: RoundFrozen) -> float:
    """The damping that the plan's tokens call for, float32; 1 for a plan that merges nothing."""
    return damping_for(spec, plan.base_revision, plan_tokens(spec, plan))


def damping_for(spec: RunSpec, base: Revision, tokens: int) -> float:
    """The damping of a plan on ``base`` that merges so many tokens."""
    return damping(tokens, spec.target_tokens(base), spec.gates.damping_at) if tokens > 0 else 1.0


def counted_tokens(spec: RunSpec, base: Revision, member: PlanMember) -> int:
    """What a member's validated tokens count for in a plan on ``base``."""
    return member.tokens if member.base_revision == base else int(member.tokens * spec.round.late_weight)


def _name(member: PlanMember) -> tuple[ShardId, Hotkey, RoundId, Sha256]:
    return member.shard, member.hotkey, member.round, member.delta.sha256


def _check_origin(state: RunState, plan: RoundFrozen, member: PlanMember) -> str:
    """A member was made for the plan's round, for an aborted one on the same base, or was deferred by the last plan."""
    base = state.revisions[plan.base_revision]
    if member.base_revision == base.revision:
        good = state.first_round <= member.round <= plan.round
        return "" if good else "it was made for a round that is not on the plan's base, or before a rollback"
    late = _name(member) in {_name(deferred) for deferred in state.deferred}
    if not late or member.base_revision != base.parent:
        return "it is of another base, and the last plan did not defer it"
    return "" if member.decision != "deferred" else "nothing is deferred twice"


def _check_member(state: RunState, plan: RoundFrozen, member: PlanMember) -> str:
    spec = state.spec
    problem = _check_origin(state, plan, member)
    if problem:
        return problem
    if not 0 <= member.shard < spec.num_shards:
        return "there is no such shard"
    key = keys.delta_key(spec.run, member.round, member.shard, member.hotkey, member.delta.sha256)
    if keys.parse_key(spec.run, key) is None:
        return "the hotkey is no address"
    if not 0 <= member.tokens <= member.tokens_claimed:
        return "validated tokens lie between 0 and the claimed ones"
    if not is_sha256(member.manifest_sha256):
        return "manifest_sha256 is 64 lowercase hex digits"
    if member.decision == "accepted":
        good = not member.code and 0 < member.scale <= member.weight <= _most_weight(spec, plan, member)
        return "" if good else "an accepted member has no code, and 0 < scale ≤ weight ≤ what its tokens count for"
    good = bool(member.code) and member.weight == 0 and member.scale == 0
    return "" if good else "a member that is not accepted has a code, and weight and scale 0"


def _most_weight(spec: RunSpec, plan: RoundFrozen, member: PlanMember) -> float:
    """Caps make a weight smaller, nothing makes it larger; as float32, as the weight is."""
    on_time = member.base_revision == plan.base_revision
    return float(np.float32(member.tokens * (1.0 if on_time else spec.round.late_weight)))


def _check_takeover(state: RunState, entry: Entry) -> None:
    if entry.term <= state.term:
        raise Rejected("stale_term", f"a takeover into term {entry.term} came after term {state.term} had begun")
    if entry.term > state.term + 1:
        raise Rejected("future_term", f"term {entry.term} does not follow term {state.term}")


def _check_leader(state: RunState, entry: Entry) -> None:
    if entry.term < state.term:
        raise Rejected("stale_term", f"written for term {entry.term} when term {state.term} had begun")
    if entry.term > state.term:
        raise Rejected("future_term", f"term {entry.term} has not begun")
    if entry.signer != state.leader:
        raise Rejected("not_leader", f"another hotkey leads term {state.term}")


def _check_opened(state: RunState, data: RoundOpened) -> None:
    _check_no_round(state)
    if data.round != state.next_round:
        _bad_transition(f"the next round is {state.next_round}, not {data.round}")
    if data.base_revision != state.head:
        _bad_transition(f"the head is revision {state.head}, not {data.base_revision}")
    if state.paused is not None or len(state.failures) >= MAX_FAILURES:
        _bad_transition("the run is paused, or must be: a person has to look and resume it")


def _check_frozen(state: RunState, data: RoundFrozen) -> None:
    opened = _the_open_round(state, data)
    before = opened.plan
    if data.attempt != (0 if before is None else before.attempt + 1):
        _bad_transition(f"round {data.round} has {0 if before is None else before.attempt + 1} plans already")
    problem = check_plan(state, data) or ("" if before is None else _check_redo(before, data))
    if problem:
        raise Rejected("bad_plan", problem)


def _check_redo(before: RoundFrozen, plan: RoundFrozen) -> str:
    """A later attempt is the plan before without some of its accepted members."""
    if plan.attempt >= MAX_ATTEMPTS:
        return f"a round has at most {MAX_ATTEMPTS} plans"
    if [_name(member) for member in before.members] != [_name(member) for member in plan.members]:
        return "another attempt names the same submissions"
    dropped = 0
    for old, new in zip(before.members, plan.members, strict=True):
        if _facts(old) != _facts(new):
            return "another attempt says the same of who sent what"
        if old.decision == "accepted":
            dropped += new.decision == "rejected"
        if old.decision != new.decision and (old.decision, new.decision) != ("accepted", "rejected"):
            return "another attempt may only reject what was accepted"
    return "" if dropped else "another attempt rejects at least one member"


def _facts(member: PlanMember) -> tuple[int, int, Sha256, int]:
    """What no judgement changes."""
    return member.uid, member.registered_block, member.manifest_sha256, member.tokens_claimed


def _check_aborted(state: RunState, data: RoundAborted) -> None:
    _the_open_round(state, data)
    if (data.code == ORDERED) != (data.command_sha256 is not None):
        _bad_transition(f"a round that names a command ends with the code {ORDERED}, and no other one does")
    _check_command(state, data.command_sha256)


def _check_paused(state: RunState, data: Paused) -> None:
    _check_no_round(state)
    if state.paused is not None:
        _bad_transition("the run is paused already")
    if (data.code == ORDERED) != (data.command_sha256 is not None):
        _bad_transition(f"a pause that names a command has the code {ORDERED}, and no other one has")
    _check_command(state, data.command_sha256)


def _check_resumed(state: RunState, data: Resumed) -> None:
    if state.paused is None:
        _bad_transition("the run is not paused")
    _check_command(state, data.command_sha256)


def _check_rolled_back(state: RunState, data: RolledBack) -> None:
    _check_no_round(state)
    if data.revision not in state.revisions:
        _bad_transition(f"the log knows revisions 0 to {state.next_revision - 1}, not {data.revision}")
    if gone := state.why_gone(data.revision):
        _bad_transition(gone)
    _check_command(state, data.command_sha256)


def _check_gc(state: RunState, data: Gc) -> None:
    _check_no_round(state)
    if problem := gc_problem(state, data):
        _bad_transition(problem)


def _check_no_round(state: RunState) -> None:
    if state.open_round is not None:
        _bad_transition(f"round {state.open_round.round} is still open")


def _check_command(state: RunState, sha256: Sha256 | None) -> None:
    """A command is obeyed once."""
    if sha256 is None:
        return
    if not is_sha256(sha256):
        _bad_transition("command_sha256 is 64 lowercase hex digits")
    if sha256 in state.obeyed:
        _bad_transition("this command was obeyed before")


def _check_committed(state: RunState, data: RevisionCommitted) -> None:
    opened = state.open_round
    if opened is None or opened.round != data.round or opened.plan is None:
        _bad_transition(f"round {data.round} is not open with a plan")
    if data.parent != opened.base_revision or data.revision != state.next_revision:
        raise Rejected("bad_revision", f"expected revision {state.next_revision} of base {opened.base_revision}")
    problem = check_shards(state.spec, data.shards, first=False)
    if not problem and data.reduced is not None:
        problem = check_reduced(state.spec, opened.plan, data.reduced)
    if problem:
        raise Rejected("bad_revision", problem)
    _check_quorum(state.spec, opened.plan, data.tokens_merged)


def _check_quorum(spec: RunSpec, plan: RoundFrozen, tokens_merged: int) -> None:
    """No quorum, no step: and no step for a part of the model only."""
    brought, quorum = plan_tokens(spec, plan), spec.quorum_tokens(plan.base_revision)
    if tokens_merged != brought:
        raise Rejected("bad_revision", f"the plan's accepted members bring {brought} tokens")
    if tokens_merged < quorum:
        raise Rejected("no_quorum", f"{tokens_merged} tokens where the quorum is {quorum}")
    covered = {member.shard for member in plan.members if member.decision == "accepted"}
    if len(covered) < spec.num_shards:
        raise Rejected("no_quorum", "a shard has no accepted member")


def _the_open_round(state: RunState, data: RoundFrozen | RoundAborted) -> OpenRound:
    opened = state.open_round
    if opened is None or opened.round != data.round:
        _bad_transition(f"round {data.round} is not open")
    if opened.base_revision != data.base_revision:
        _bad_transition(f"round {data.round} has base {opened.base_revision}, not {data.base_revision}")
    return opened


def _bad_transition(message: str) -> NoReturn:
    raise Rejected("bad_transition", message)


def _check_genesis(state: RunState, data: Genesis) -> None:
    _bad_transition("a log has one genesis")


_CHECKS: Mapping[type[EntryData], Callable[[RunState, Any], None]] = {
    Genesis: _check_genesis,
    RoundOpened: _check_opened,
    RoundFrozen: _check_frozen,
    RevisionCommitted: _check_committed,
    RoundAborted: _check_aborted,
    Paused: _check_paused,
    Resumed: _check_resumed,
    RolledBack: _check_rolled_back,
    Gc: _check_gc,
}
