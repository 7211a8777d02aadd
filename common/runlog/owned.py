"""Entries that the run's owner signs itself, whoever leads: they work exactly when leaders are gone or lie.

``leaders_changed`` says who may lead from here on, ``storage_moved`` in which bucket the log goes on. Such an entry
begins no term: it is valid in the present one only, and the leader, whose next append finds its slot taken, reads it
and decides anew. Codes of breaches are those of ``rules.py``: ``not_allowed``, ``stale_term``, ``future_term``,
``bad_transition``.
"""

from __future__ import annotations

from dataclasses import replace

from common.chain import commitment
from common.chain.commitment import RunLocation
from common.errors import Rejected
from common.keys import is_hotkey
from common.runlog.entries import Entry, LeadersChanged, StorageMoved
from common.runlog.state import RunState
from common.spec import RunSpec, spec_hash

OWNED = (LeadersChanged, StorageMoved)
"""Kinds of entries that only the owner may sign."""
MAX_VALIDATORS = 256
"""As many hotkeys as a subnet has seats."""


def check_owned(state: RunState, entry: Entry) -> None:
    """Raise ``Rejected`` unless the owner may say this now."""
    if entry.signer != state.spec.owner:
        raise Rejected("not_allowed", f"{entry.kind} is signed by the owner of the run")
    if entry.term != state.term:
        code = "stale_term" if entry.term < state.term else "future_term"
        raise Rejected(code, f"written for term {entry.term}, and the present one is {state.term}")
    data = entry.data
    assert isinstance(data, OWNED)
    problem = leaders_problem(state, data) if isinstance(data, LeadersChanged) else move_problem(state, data)
    if problem:
        raise Rejected("bad_transition", problem)


def leaders_problem(state: RunState, data: LeadersChanged) -> str:
    """What is wrong with a new set of validators, or nothing."""
    named = data.validators
    if not 1 <= len(named) <= MAX_VALIDATORS:
        return f"1 to {MAX_VALIDATORS} validators may lead, not {len(named)}"
    if list(named) != sorted(set(named)):
        return "validators are named in order, each once"
    if not all(is_hotkey(hotkey) for hotkey in named):
        return "a validator is named by the SS58 address of its hotkey"
    return "" if set(named) != set(state.validators) else "these are the validators who may lead already"


def move_problem(state: RunState, data: StorageMoved) -> str:
    """What is wrong with a move, or nothing. A run never comes back to a bucket that it has left: its readers could not
    tell the log that ends there from the one that goes on."""
    if state.moved is not None and data.source != state.moved.target:
        return f"the run is in {state.moved.target.base_url}, not in {data.source.base_url}"
    if data.target == data.source or data.target in {move.source for move in state.moves}:
        return f"the run is or was in {data.target.base_url}: name another bucket or prefix"
    try:
        commitment.encode(location_of_move(state.spec, data))
    except Rejected as refusal:
        return refusal.message
    return ""


def location_of_move(spec: RunSpec, move: StorageMoved) -> RunLocation:
    """The run's location after a move, as the chain has it."""
    place = move.target
    return RunLocation(spec.run, spec_hash(spec), place.endpoint, place.bucket, place.prefix, move.public_read)


def owned_effect(state: RunState, entry: Entry) -> RunState:
    """What a valid one changes, but for its place in the chain."""
    if isinstance(entry.data, StorageMoved):
        return replace(state, moves=(*state.moves, entry.data))
    assert isinstance(entry.data, LeadersChanged)
    return replace(state, validator_sets=(*state.validator_sets, entry.data.validators))
