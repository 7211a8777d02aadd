"""What the owner says by itself in the log: who may lead."""

from __future__ import annotations

import pytest

from common.clock import ManualClock
from common.errors import OperatorError
from common.identity import Signer
from common.runlog.entries import LeadersChanged
from common.runlog.replay import apply
from common.runlog.state import RunState
from common.runlog.writer import LogWriter, LostSlot
from common.store.memory import MemoryStore
from common.units import Hotkey
from tests.runlog.support import (
    ALICE,
    BOB,
    OWNER,
    SPEC,
    STRANGER,
    aborted,
    after,
    genesis,
    led,
    no_patience,
    opened,
    slot,
    takeover,
)
from validator.run_leaders import change_leaders


def only(*signers: Signer) -> LeadersChanged:
    return LeadersChanged(tuple(sorted(one.hotkey for one in signers)))


def test_a_new_set_replaces_the_specs_and_the_old_leader_can_write_nothing() -> None:
    state = after(led(), opened)
    state = after(state, lambda _: only(STRANGER), signer=OWNER)
    assert state.validators == (STRANGER.hotkey,)
    assert state.ever_validators == {ALICE.hotkey, BOB.hotkey, STRANGER.hotkey}
    assert (state.leader, state.term) == (ALICE.hotkey, 1)
    for data, signer, term in ((opened(state), ALICE, 1), (takeover(), BOB, 2)):
        step = apply(state, slot(state, data, signer, term=term))
        assert step.void is not None
        assert step.void.code == "not_allowed"
    led_by_new = after(state, lambda _: takeover(), signer=STRANGER)
    assert (led_by_new.leader, led_by_new.term) == (STRANGER.hotkey, 2)
    assert led_by_new.open_round is not None, "the round goes on"


def test_it_works_before_anybody_leads_and_again_later() -> None:
    state = after(led(), lambda _: only(BOB), lambda _: only(ALICE, BOB), signer=OWNER)
    assert after(state, opened).open_round is not None, "a leader that was left out and named again goes on in its term"


@pytest.mark.parametrize(
    ("data", "signer", "term", "code"),
    [
        (only(STRANGER), ALICE, 1, "not_allowed"),
        (only(STRANGER), OWNER, 0, "stale_term"),
        (only(STRANGER), OWNER, 2, "future_term"),
        (LeadersChanged(()), OWNER, 1, "bad_transition"),
        (only(ALICE, BOB), OWNER, 1, "bad_transition"),
        (LeadersChanged((BOB.hotkey, BOB.hotkey)), OWNER, 1, "bad_transition"),
        (LeadersChanged((Hotkey("nobody"),)), OWNER, 1, "bad_transition"),
    ],
)
def test_what_the_owner_may_not_say_counts_for_nothing(
    data: LeadersChanged, signer: Signer, term: int, code: str
) -> None:
    state = led()
    step = apply(state, slot(state, data, signer, term=term))
    assert step.void is not None
    assert step.void.code == code
    assert step.state.validators == SPEC.validators


def running() -> tuple[MemoryStore, RunState, LogWriter]:
    clock = ManualClock()
    store = MemoryStore(clock)
    LogWriter(store, SPEC, OWNER, clock, patience=no_patience()).begin(genesis(), "begins")
    alice = LogWriter(store, SPEC, ALICE, clock, patience=no_patience())
    return store, alice.append(alice.catch_up(), takeover(), "leads", 1), alice


def test_the_command_writes_behind_what_came_first_and_the_leader_looks_again() -> None:
    store, before, alice = running()
    said: list[str] = []
    state = alice.append(before, opened(before), "a round", 1)
    ordered = change_leaders(store, before, OWNER, [BOB.hotkey, ALICE.hotkey, STRANGER.hotkey], said.append)
    assert ordered.next_seq == state.next_seq + 1
    assert STRANGER.hotkey not in said[0]
    assert STRANGER.hotkey in said[1]
    with pytest.raises(LostSlot) as lost:
        alice.append(state, aborted(state), "decided on the old log", 1)
    assert lost.value.state.validators == ordered.validators


def test_the_command_refuses_what_the_log_would() -> None:
    store, state, alice = running()
    for nonsense, why in (([], "not 0"), ([ALICE.hotkey] * 2, "each once"), ([ALICE.hotkey, BOB.hotkey], "already")):
        with pytest.raises(OperatorError, match=why):
            change_leaders(store, state, OWNER, nonsense, lambda _: None)
    assert alice.catch_up() == state
