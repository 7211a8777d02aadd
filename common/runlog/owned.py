"""Entries that the run's owner signs itself, whoever leads: they work exactly when leaders are gone or lie.

``leaders_changed`` says who may lead from here on. Such an entry begins no term: it is valid in the present one only,
and the leader, whose next append finds its slot taken, reads it and decides anew. Codes of breaches are those of
``rules.py``: ``not_allowed``, ``stale_term``, ``future_term``, ``bad_transition``.
"""

from __future__ import annotations

from dataclasses import replace

from common.errors import Rejected
from common.keys import is_hotkey
from common.runlog.entries import Entry, LeadersChanged
from common.runlog.state import RunState

OWNED = (LeadersChanged,)
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
    assert isinstance(data, LeadersChanged)
    problem = leaders_problem(state, data)
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


def owned_effect(state: RunState, entry: Entry) -> RunState:
    """What a valid one changes, but for its place in the chain."""
    assert isinstance(entry.data, LeadersChanged)
    return replace(state, validator_sets=(*state.validator_sets, entry.data.validators))
