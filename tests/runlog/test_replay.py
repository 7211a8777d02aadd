"""Histories of entries, honest and not: every prefix is a valid state, and each breach is void with its own code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import Rejected
from common.runlog.entries import NO_PREVIOUS, Genesis, PlanMember, RoundFrozen
from common.runlog.replay import apply, begin, history, replay
from common.runlog.state import RunState
from common.units import Hotkey, Revision, RoundId, Sha256, ShardId
from tests.runlog.support import (
    ALICE,
    BOB,
    MINERS,
    OWNER,
    SPEC,
    STRANGER,
    aborted,
    after,
    committed,
    frozen,
    genesis,
    genesis_slot,
    led,
    member,
    opened,
    paused,
    resumed,
    rolled_back,
    shards,
    slot,
    small_spec,
    started,
    steady,
    takeover,
)

Mutate = Callable[[RunState], bytes]


def code(state: RunState, slot_bytes: bytes) -> str:
    """Why the slot is void; the rest of the state must not have changed."""
    step = apply(state, slot_bytes)
    assert step.void is not None
    unchanged = replace(step.state, next_seq=state.next_seq, head_sha256=state.head_sha256, voids=state.voids)
    assert unchanged == state
    assert step.state.next_seq == state.next_seq + 1
    assert step.state.voids[-1] == step.void
    return step.void.code


def test_a_round_becomes_a_revision() -> None:
    state = after(led(), opened, frozen, committed)
    assert (state.head, state.next_revision, state.next_round) == (1, 2, 1)
    assert state.rounds_committed == 1
    assert state.tokens_merged == 300
    node = state.revisions[Revision(1)]
    assert (node.parent, node.round, node.tokens_merged) == (0, 0, 300)
    assert [n.revision for n in state.lineage(Revision(1))] == [0, 1]
    assert state.open_round is None


def test_an_aborted_round_keeps_the_base_and_its_number_is_not_used_again() -> None:
    state = after(led(), opened, aborted, opened, frozen, aborted, opened)
    assert (state.head, state.rounds_aborted) == (0, 2)
    assert state.open_round is not None
    assert (state.open_round.round, state.open_round.base_revision) == (2, 0)


def test_a_new_leader_finishes_the_round_of_the_old_one() -> None:
    state = after(led(), opened, frozen)
    state = after(state, lambda _: takeover(), committed, signer=BOB)
    assert (state.head, state.term, state.leader) == (1, 2, BOB.hotkey)
    assert (state.leader_of(1), state.leader_of(2), state.leader_of(3)) == (ALICE.hotkey, BOB.hotkey, None)


@pytest.mark.parametrize(
    ("slot_bytes", "expected"),
    [
        (lambda s: b"", "bad_json"),
        (lambda s: b"{}", "bad_record"),
        (lambda s: genesis_slot(small_spec(num_shards=2)), "wrong_seq"),
        (lambda s: slot(s, opened(s), ALICE, spec=replace(SPEC, run="other")), "wrong_run"),
        (lambda s: slot(s, opened(s), ALICE, seq=s.next_seq + 1), "wrong_seq"),
        (lambda s: slot(s, opened(s), ALICE, prev=NO_PREVIOUS), "wrong_prev"),
        (lambda s: slot(s, opened(s), STRANGER), "not_allowed"),
        (lambda s: slot(s, opened(s), OWNER), "not_allowed"),
        (lambda s: slot(s, opened(s), BOB), "not_leader"),
        (lambda s: slot(s, opened(s), ALICE, term=0), "stale_term"),
        (lambda s: slot(s, opened(s), ALICE, term=2), "future_term"),
        (lambda s: slot(s, takeover(), BOB, term=1), "stale_term"),
        (lambda s: slot(s, takeover(), BOB, term=3), "future_term"),
        (lambda s: slot(s, takeover(), STRANGER, term=2), "not_allowed"),
        (lambda s: slot(s, genesis(), ALICE), "bad_transition"),
        (lambda s: slot(s, replace(opened(s), round=RoundId(1)), ALICE), "bad_transition"),
        (lambda s: slot(s, replace(opened(s), base_revision=Revision(1)), ALICE), "bad_transition"),
        (lambda s: slot(s, RoundFrozen(RoundId(0), Revision(0), 0, 1.0, ()), ALICE), "bad_transition"),
    ],
)
def test_between_rounds(slot_bytes: Mutate, expected: str) -> None:
    state = led()
    assert code(state, slot_bytes(state)) == expected


def _plan(state: RunState, **changes: object) -> bytes:
    """A plan whose first member is changed."""
    first, *others = frozen(state).members
    return slot(state, frozen(state, replace(first, **changes), *others), ALICE)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("slot_bytes", "expected"),
    [
        (lambda s: slot(s, opened(s), ALICE), "bad_transition"),
        (lambda s: slot(s, committed(s), ALICE), "bad_transition"),
        (lambda s: slot(s, replace(aborted(s), base_revision=Revision(3)), ALICE), "bad_transition"),
        (lambda s: slot(s, replace(frozen(s), round=RoundId(7)), ALICE), "bad_transition"),
        (lambda s: slot(s, replace(frozen(s), members=frozen(s).members[::-1]), ALICE), "bad_plan"),
        (lambda s: slot(s, replace(frozen(s), members=frozen(s).members[:1] * 2), ALICE), "bad_plan"),
        (lambda s: _plan(s, shard=ShardId(1)), "bad_plan"),
        (lambda s: _plan(s, hotkey=Hotkey("../../lease.json")), "bad_plan"),
        (lambda s: _plan(s, tokens=101), "bad_plan"),
        (lambda s: _plan(s, tokens=-1), "bad_plan"),
        (lambda s: _plan(s, code="too_big"), "bad_plan"),
        (lambda s: _plan(s, weight=0.0), "bad_plan"),
        (lambda s: _plan(s, scale=-1.0), "bad_plan"),
        (lambda s: _plan(s, scale=1.5), "bad_plan"),
        (lambda s: _plan(s, tokens=0), "bad_plan"),
        (lambda s: _plan(s, weight=100.5), "bad_plan"),
        (lambda s: _plan(s, decision="rejected"), "bad_plan"),
        (lambda s: _plan(s, decision="rejected", code="late"), "bad_plan"),
        (lambda s: _plan(s, manifest_sha256=Sha256("x")), "bad_plan"),
        (lambda s: _plan(s, decision="perhaps"), "bad_entry"),
    ],
)
def test_in_an_open_round(slot_bytes: Mutate, expected: str) -> None:
    state = after(led(), opened)
    assert code(state, slot_bytes(state)) == expected


@pytest.mark.parametrize(
    ("slot_bytes", "expected"),
    [
        (lambda s: slot(s, frozen(s), ALICE), "bad_transition"),
        (lambda s: slot(s, replace(committed(s), round=RoundId(1)), ALICE), "bad_transition"),
        (lambda s: slot(s, replace(committed(s), revision=Revision(2)), ALICE), "bad_revision"),
        (lambda s: slot(s, replace(committed(s), parent=Revision(1)), ALICE), "bad_revision"),
        (lambda s: slot(s, committed(s, tokens=299), ALICE), "bad_revision"),
        (lambda s: slot(s, replace(committed(s), shards=()), ALICE), "bad_revision"),
        (lambda s: slot(s, replace(committed(s), shards=shards(SPEC, "x", first=True)), ALICE), "bad_revision"),
    ],
)
def test_in_a_frozen_round(slot_bytes: Mutate, expected: str) -> None:
    state = after(led(), opened, frozen)
    assert code(state, slot_bytes(state)) == expected


def test_no_quorum_no_step() -> None:
    few = SPEC.round.quorum_tokens - 1
    state = after(
        led(), opened, lambda s: frozen(s, member(s, MINERS[0], tokens=few), member(s, MINERS[1], code="late"))
    )
    assert code(state, slot(state, committed(state), ALICE)) == "no_quorum"
    half = small_spec(num_shards=2)
    state = after(led(half), opened, lambda s: frozen(s, member(s, MINERS[0], shard=1)))
    assert code(state, slot(state, committed(state), ALICE, spec=half)) == "no_quorum"


@pytest.mark.parametrize(
    "slot_bytes",
    [
        slot(None, genesis(), ALICE, term=0),
        slot(None, genesis(), OWNER, term=1),
        slot(None, genesis(), OWNER, term=0, seq=1),
        slot(None, genesis(), OWNER, term=0, prev=Sha256("1" * 64)),
        slot(None, replace(genesis(), spec_sha256=Sha256("1" * 64)), OWNER, term=0),
        slot(None, replace(genesis(), shards=shards(SPEC, "x")), OWNER, term=0),
        slot(None, Genesis(genesis().spec_sha256, ()), OWNER, term=0),
        slot(None, takeover(), ALICE, term=1),
    ],
)
def test_a_bad_genesis_is_an_error(slot_bytes: bytes) -> None:
    with pytest.raises(Rejected) as caught:
        begin(SPEC, slot_bytes)
    assert caught.value.code == "bad_genesis"


def test_an_empty_log_has_no_state() -> None:
    with pytest.raises(Rejected, match="no_genesis"):
        replay(SPEC, [])


MAKERS: tuple[Callable[..., Any], ...] = (takeover, opened, frozen, committed, aborted, paused, resumed, rolled_back)


def _draw_slot(state: RunState, draw: st.DrawFn) -> bytes:
    """An entry that names its place in the chain, and may follow or not."""
    signer = draw(st.sampled_from([ALICE, ALICE, ALICE, BOB, STRANGER]))
    maker = draw(st.sampled_from(MAKERS))
    if maker in (frozen, committed, aborted) and state.open_round is None:
        maker = opened
    data = takeover() if maker is takeover else maker(state)
    if maker is resumed:
        data = resumed(state, cold=draw(st.booleans()))
    if maker is rolled_back:
        data = rolled_back(
            state, draw(st.sampled_from([0, int(state.head), max(state.revisions), max(state.revisions) + 1]))
        )
    term = state.term + (maker is takeover) + draw(st.sampled_from([0, 0, 0, 0, -1, 1]))
    return slot(state, data, signer, term=term, nonce=str(draw(st.integers(0, 99))))


@st.composite
def logs(draw: st.DrawFn, garbage: bool) -> list[bytes]:
    """The slots of a log: mostly valid entries, breaches between them, and (``garbage``) bytes of no place in it."""
    state, slots = started(), [genesis_slot()]
    for _ in range(draw(st.integers(0, 14))):
        chained = _draw_slot(state, draw)
        stray = draw(st.sampled_from([b"", b"junk", *slots]))
        slots.append(stray if garbage and draw(st.integers(0, 9)) == 0 else chained)
        state = apply(state, slots[-1]).state
    return slots


def _named_now(state: RunState) -> tuple[PlanMember, ...]:
    """Members of the open round's plan that were made on its base."""
    plan = state.open_round.plan if state.open_round else None
    return () if plan is None else tuple(m for m in plan.members if m.base_revision == plan.base_revision)


def _is_sound(state: RunState) -> bool:
    terms = [leadership.term for leadership in state.leaders]
    lineage = state.lineage(state.head)
    ended = state.rounds_committed + state.rounds_aborted
    return (
        terms == list(range(1, len(terms) + 1))
        and lineage[0].revision == 0
        and state.rounds_committed == len(state.revisions) - 1
        and state.next_round == ended + (state.open_round is not None)
        and (state.open_round is None or state.open_round.base_revision == state.head)
        and (state.open_round is None or state.paused is None)
        and all(old.seq < new.seq and old.round <= new.round for old, new in pairwise(state.restarts))
        and all(restart.revision in state.revisions for restart in state.restarts)
        and state.head_node.first_round <= state.first_round <= state.next_round
        and all(member.round >= state.first_round for member in _named_now(state))
        and len(state.voids) < state.next_seq
    )


@steady(120)
@given(logs(garbage=True))
def test_every_prefix_is_a_valid_state_and_steps_add_up(slots: list[bytes]) -> None:
    steps = list(history(SPEC, slots))
    state = begin(SPEC, slots[0])
    for index, step in enumerate(steps):
        state = state if index == 0 else apply(state, slots[index]).state
        assert step.state == state
        assert _is_sound(state)
    assert replay(SPEC, slots) == state == replay(SPEC, list(slots))


@steady(60)
@given(logs(garbage=False), st.data())
def test_a_changed_past_is_seen_at_the_next_entry(slots: list[bytes], data: st.DataObject) -> None:
    """Replay calls that entry void; verify, for which ``wrong_prev`` is an error, names the slot."""
    index = data.draw(st.integers(1, max(1, len(slots) - 1)))
    changed = [*slots[:index], b"another past", *slots[index + 1 :]]
    steps = list(history(SPEC, changed))
    after_change = steps[index + 1 : index + 2]
    assert [step.void.code for step in after_change if step.void] == ["wrong_prev"] * len(after_change)
