"""The round machine: phases only go forward, a hard deadline ends every round, the log overrides memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.runlog.rules import MAX_ATTEMPTS
from common.units import Hotkey, Revision, RoundId
from validator.round.core import delayed, held_on, longer, opened, resume, tick
from validator.round.deadlines import seconds_left
from validator.round.facts import (
    Action,
    Harm,
    Held,
    MemberFacts,
    Phase,
    RoundFacts,
    RoundPolicy,
    RoundState,
    Verdict,
)

POLICY = RoundPolicy(
    target_tokens=1000,
    quorum_tokens=200,
    train_deadline_s=60.0,
    submit_deadline_s=20.0,
    finish_deadline_s=30.0,
    late_weight=0.5,
    waste=1.0,
)
LONGEST_S = POLICY.train_deadline_s + POLICY.submit_deadline_s + POLICY.finish_deadline_s
ORDER = tuple(Phase)
START = opened(RoundId(3), Revision(2), 0.0)


def member(name: str, tokens: int = 0, **changes: Any) -> MemberFacts:
    facts = MemberFacts(Hotkey(name), live=True, heard=True, trains=tokens > 0, tokens=tokens, delivered=False)
    return replace(facts, **changes)


def run(state: RoundState, facts: RoundFacts, now_s: float) -> tuple[RoundState, Action, str]:
    decision = tick(state, facts, now_s, POLICY)
    return decision.state, decision.action, decision.reason


def test_the_timer_starts_with_the_first_miner_that_trains() -> None:
    state, action, reason = run(START, RoundFacts(), 5000.0)
    assert (state.phase, action, state.deadline_s) == (Phase.OPEN, Action.WAIT, None)
    assert "first miner" in reason
    state, _, _ = run(state, RoundFacts((member("a", 10),)), 5000.0)
    assert state.deadline_s == 5060.0
    assert seconds_left(state, 5010.0, POLICY) == 50.0


def test_the_token_target_closes_the_round_and_all_delivered_freezes_it() -> None:
    state, action, _ = run(START, RoundFacts((member("a", 600), member("b", 400))), 1.0)
    assert (state.phase, action, state.deadline_s) == (Phase.CLOSING, Action.WAIT, 21.0)
    half = RoundFacts((member("a", 600, delivered=True), member("b", 400)))
    assert run(state, half, 2.0)[0].phase is Phase.CLOSING
    done = RoundFacts((member("a", 600, delivered=True), member("b", 400, delivered=True)))
    state, action, reason = run(state, done, 3.0)
    assert (state.phase, action) == (Phase.FROZEN, Action.JUDGE)
    assert "2 miners delivered" in reason


def test_a_dead_miner_is_not_waited_for_and_its_unsent_tokens_do_not_count() -> None:
    facts = RoundFacts((member("a", 600), member("b", 400, live=False)))
    assert run(START, facts, 1.0)[0].phase is Phase.OPEN
    closing = replace(START, phase=Phase.CLOSING, deadline_s=20.0)
    alive = RoundFacts((member("a", 600, delivered=True), member("b", 400, live=False)))
    assert run(closing, alive, 2.0)[1] is Action.JUDGE


def test_what_a_dead_miner_has_dripped_counts_for_target_and_quorum() -> None:
    dead = member("b", 700, live=False, dripped_tokens=500)
    assert run(START, RoundFacts((member("a", 499), dead)), 1.0)[0].phase is Phase.OPEN
    assert run(START, RoundFacts((member("a", 500), dead)), 1.0)[0].phase is Phase.CLOSING
    closing = replace(START, phase=Phase.CLOSING, deadline_s=20.0)
    state, action, reason = run(closing, RoundFacts((member("a", 1, eta_s=30.0), dead)), 2.0)
    assert (state.phase, action) == (Phase.FROZEN, Action.JUDGE), "nobody waits for one token that comes too late"
    assert "quorum" in reason


def test_what_the_dead_have_left_is_merged_though_nobody_comes_any_more() -> None:
    left = RoundFacts((member("b", live=False, dripped_tokens=500),))
    state, _, _ = run(START, left, 0.0)
    assert run(state, left, 60.0)[1] is Action.JUDGE


def test_what_the_dead_have_left_ends_no_round_that_it_can_not_carry() -> None:
    left = RoundFacts((member("b", live=False, dripped_tokens=POLICY.quorum_tokens - 1),))
    state, action, reason = run(START, left, 1e6)
    assert (state.deadline_s, action) == (None, Action.WAIT)
    assert "first miner" in reason


def test_after_an_aborted_round_the_next_one_does_not_close_at_once() -> None:
    policy = replace(POLICY, least_open_s=8.0)
    facts = RoundFacts((member("a", 1000),))
    waiting = tick(START, facts, 7.9, policy)
    assert (waiting.state.phase, waiting.until_s) == (Phase.OPEN, 8.0)
    assert tick(waiting.state, facts, 8.0, policy).state.phase is Phase.CLOSING


def test_before_the_quorum_nobody_is_left_behind_and_after_it_only_who_costs_too_much() -> None:
    closing = replace(START, phase=Phase.CLOSING, deadline_s=20.0)
    slow = member("c", 300, eta_s=15.0)
    early = RoundFacts((member("a", 150, delivered=True, rate=100.0), member("b", 400), slow))
    state, action, _ = run(closing, early, 2.0)
    assert (action, state.quorum_s) == (Action.WAIT, None)
    enough = RoundFacts((member("a", 400, delivered=True, rate=100.0), slow))
    state, action, reason = run(state, enough, 3.0)
    assert (action, state.quorum_s) == (Action.JUDGE, 3.0), "1,500 tokens of waiting for 300"
    assert "the quorum is met" in reason
    near = RoundFacts((member("a", 400, delivered=True, rate=100.0), replace(slow, eta_s=2.0)))
    assert run(closing, near, 3.0)[1] is Action.WAIT, "200 tokens of waiting for 300"
    cheap = tick(closing, enough, 3.0, replace(POLICY, waste=0.1))
    assert cheap.action is Action.WAIT, "who goes on training loses little by waiting"
    assert cheap.until_s is not None
    assert 3.0 < cheap.until_s <= 20.0


def test_a_wait_ends_when_it_has_cost_what_it_would_have_brought() -> None:
    facts = RoundFacts((member("a", 400, delivered=True, rate=100.0), member("b", 300)))
    state, now_s = replace(START, phase=Phase.CLOSING, deadline_s=20.0), 0.0
    while (decision := tick(state, facts, now_s, POLICY)).action is Action.WAIT:
        state, now_s = decision.state, now_s + 0.5
    assert 2.0 < now_s <= 3.0, "300 tokens at 100 tokens a second"


def test_all_shards_have_to_be_there_before_anybody_is_left_behind() -> None:
    closing = replace(START, phase=Phase.CLOSING, deadline_s=20.0)
    facts = RoundFacts((member("a", 900, delivered=True, rate=1000.0), member("b", 1, eta_s=9.0)))
    assert tick(closing, facts, 1.0, replace(POLICY, num_shards=2)).action is Action.WAIT
    assert tick(closing, replace(facts, shards=2), 1.0, replace(POLICY, num_shards=2)).action is Action.JUDGE


def test_a_joiner_that_has_not_trained_is_not_waited_for_but_one_not_heard_yet_is() -> None:
    closing = replace(START, phase=Phase.CLOSING, deadline_s=20.0)
    joiner = RoundFacts((member("a", 600, delivered=True), member("b")))
    assert run(closing, joiner, 2.0)[1] is Action.JUDGE
    unknown = RoundFacts((member("a", 600, delivered=True), member("b", heard=False)))
    assert run(closing, unknown, 2.0)[1] is Action.WAIT


def test_when_all_who_train_have_delivered_nothing_is_left_to_wait_for() -> None:
    state, action, _ = run(START, RoundFacts((member("a", 100, delivered=True),)), 1.0)
    assert (state.phase, action) == (Phase.FROZEN, Action.JUDGE)


def test_a_round_that_closed_on_what_was_said_before_waits_for_members_that_move_to_its_base() -> None:
    """Seen after a takeover: two miners had trained ahead, the round closed at once, and both had nothing in it yet."""
    closing = run(START, RoundFacts((member("a", 600), member("b", 400))), 1.0)[0]
    moving = RoundFacts((member("a"), member("b")))
    state, action, reason = run(closing, moving, 2.0)
    assert (state.phase, action) == (Phase.CLOSING, Action.WAIT)
    assert "waiting for" in reason
    assert run(state, moving, 21.0)[0].phase is Phase.FROZEN, "but not beyond the deadline"
    enough = RoundFacts((member("a", 300, delivered=True), member("b")))
    assert run(state, enough, 3.0)[0].phase is Phase.FROZEN, "nor beyond the quorum"


def test_deadlines_end_training_and_submitting() -> None:
    state, _, _ = run(START, RoundFacts((member("a", 300),)), 0.0)
    state, _, reason = run(state, RoundFacts((member("a", 300),)), 60.0)
    assert state.phase is Phase.CLOSING
    assert "training time" in reason
    state, action, reason = run(state, RoundFacts((member("a", 300),)), 80.0)
    assert (state.phase, action) == (Phase.FROZEN, Action.JUDGE)
    assert "1 missing" in reason


@pytest.mark.parametrize(
    ("tokens", "shards", "action"), [(199, 1, Action.ABORT), (200, 1, Action.PLAN), (500, 0, Action.ABORT)]
)
def test_the_quorum_decides_between_plan_and_abort(tokens: int, shards: int, action: Action) -> None:
    frozen = replace(START, phase=Phase.FROZEN, deadline_s=100.0)
    facts = RoundFacts(verdict=Verdict(tokens, 2, 1, shards))
    state, found, _ = run(frozen, facts, 1.0)
    assert found is action
    assert state.code == ("no_quorum" if action is Action.ABORT else "")


def test_the_plan_is_reduced_then_committed() -> None:
    frozen = replace(START, phase=Phase.FROZEN, deadline_s=100.0)
    assert run(frozen, RoundFacts(attempt=0), 1.0)[1] is Action.REDUCE
    state, action, _ = run(frozen, RoundFacts(attempt=0, reduced=True), 2.0)
    assert (state.phase, action) == (Phase.REDUCED, Action.COMMIT)
    state, action, _ = run(state, RoundFacts(attempt=0, reduced=True, ended=Phase.COMMITTED), 3.0)
    assert (state.phase, action) == (Phase.COMMITTED, Action.END)


def test_all_rejected_is_no_lack_of_members() -> None:
    frozen = replace(START, phase=Phase.FROZEN, deadline_s=100.0)
    assert run(frozen, RoundFacts(verdict=Verdict(0, 0, 3, 0, refused_tokens=500)), 1.0)[0].code == "all_rejected"
    assert run(frozen, RoundFacts(verdict=Verdict(0, 0, 3, 0, refused_tokens=100)), 1.0)[0].code == "no_quorum"
    assert run(frozen, RoundFacts(verdict=Verdict(150, 1, 3, 1, refused_tokens=500)), 1.0)[0].code == "no_quorum"
    assert run(frozen, RoundFacts(verdict=Verdict(0, 0, 0, 0, deferred=3)), 1.0)[0].code == "no_quorum"


def harm(attempt: int, *suspects: str, left: int = 500) -> Harm:
    return Harm(attempt, ("the loss would rise",), tuple(Hotkey(s) for s in suspects), Verdict(left, 2, 1, 1))


def test_a_plan_that_does_harm_is_made_again_without_the_suspects() -> None:
    frozen = replace(START, phase=Phase.FROZEN, deadline_s=100.0)
    state, action, reason = run(frozen, RoundFacts(attempt=0, harm=harm(0, "evil")), 1.0)
    assert (state.phase, action) == (Phase.FROZEN, Action.REPLAN)
    assert "evil" in reason
    assert run(state, RoundFacts(attempt=1, harm=harm(0, "evil")), 2.0)[1] is Action.REDUCE
    assert run(state, RoundFacts(attempt=1, harm=harm(1, "worse")), 3.0)[1] is Action.REPLAN
    assert run(state, RoundFacts(attempt=1, reduced=True), 3.0)[1] is Action.COMMIT


@pytest.mark.parametrize(
    "found", [harm(MAX_ATTEMPTS - 1, "evil"), harm(0), harm(0, "evil", left=POLICY.quorum_tokens - 1)]
)
def test_it_is_given_up_with_evidence_when_nothing_better_can_be_planned(found: Harm) -> None:
    frozen = replace(START, phase=Phase.FROZEN, deadline_s=100.0)
    facts = RoundFacts(attempt=found.attempt, harm=found)
    state, action, _ = run(frozen, facts, 1.0)
    assert (action, state.code, state.evidence) == (Action.ABORT, "loss_guard", ("the loss would rise",))
    again = run(state, replace(facts, harm=None, reduced=True), 2.0)
    assert (again[1], again[0].evidence) == (Action.ABORT, state.evidence)


def test_what_can_not_be_merged_or_takes_too_long_is_given_up_for_good() -> None:
    frozen = replace(START, phase=Phase.FROZEN, deadline_s=100.0)
    state, action, _ = run(frozen, RoundFacts(attempt=0, failure="bad_merge"), 1.0)
    assert (action, state.code) == (Action.ABORT, "bad_merge")
    assert run(state, RoundFacts(attempt=0, reduced=True), 2.0)[1] is Action.ABORT
    assert run(frozen, RoundFacts(attempt=0), 100.0)[0].code == "merge_timeout"


def test_what_is_merged_and_stored_is_committed_however_late() -> None:
    frozen = replace(START, phase=Phase.FROZEN, deadline_s=100.0)
    done = RoundFacts(attempt=0, reduced=True)
    state, action, _ = run(frozen, done, 500.0)
    assert (state.phase, action, state.code) == (Phase.REDUCED, Action.COMMIT, "")
    assert run(state, done, 600.0)[1] is Action.COMMIT
    assert run(state, replace(done, failure="bad_revision"), 600.0)[1] is Action.ABORT


def test_time_that_does_not_count_moves_the_deadline() -> None:
    closing = replace(START, phase=Phase.CLOSING, deadline_s=20.0)
    assert delayed(closing, 7.5).deadline_s == 27.5
    assert delayed(replace(closing, quorum_s=5.0), 7.5).quorum_s == 12.5
    assert delayed(START, 7.5).deadline_s is None
    assert delayed(closing, -1.0).deadline_s == 20.0


def test_held_time_is_added_up_and_the_next_round_takes_over_what_its_work_began_in() -> None:
    state = delayed(opened(RoundId(3), Revision(2), 100.0, Held(5.0, 4.0)), 30.0)
    state = delayed(replace(state, phase=Phase.CLOSING, deadline_s=20.0), 7.5)
    state = delayed(replace(state, phase=Phase.FROZEN), -1.0)
    assert (state.held_s, state.held_after_s) == (42.5, 7.5)
    assert held_on(replace(state, phase=Phase.ABORTED)) == Held(42.5, 4.0), "the base stays, and so does the work"
    assert held_on(replace(state, phase=Phase.COMMITTED)) == Held(7.5, 0.0), "it was heard"
    assert longer(Held(7.5, 2.5), 600.0) == Held(607.5, 2.5)


@pytest.mark.parametrize("planned", [False, True])
def test_a_round_that_is_taken_over_holds_the_time_before(planned: bool) -> None:
    state = resume(RoundId(3), Revision(2), planned, 100.0, POLICY, Held(600.0, 500.0))
    assert (state.held_s, state.unheard_s) == (600.0, 500.0)
    after = Held(600.0, 500.0) if planned else Held()
    assert held_on(replace(state, phase=Phase.COMMITTED)) == after


def test_contradictory_limits_are_refused() -> None:
    with pytest.raises(ValueError, match="quorum"):
        replace(POLICY, quorum_tokens=2000)
    with pytest.raises(ValueError, match="deadlines"):
        replace(POLICY, submit_deadline_s=0.0)
    with pytest.raises(ValueError, match="late_weight"):
        replace(POLICY, late_weight=0.0)


members = st.builds(
    MemberFacts,
    hotkey=st.sampled_from([Hotkey(name) for name in "abcdef"]),
    live=st.booleans(),
    heard=st.booleans(),
    trains=st.booleans(),
    tokens=st.integers(0, 2000),
    delivered=st.booleans(),
    awaited=st.booleans(),
    rate=st.floats(0.0, 500.0),
    dripped_tokens=st.integers(0, 500),
    eta_s=st.none() | st.floats(0.0, 40.0),
    can_be_late=st.booleans(),
)
verdicts = st.none() | st.builds(
    Verdict,
    tokens=st.integers(0, 2000),
    accepted=st.integers(0, 6),
    rejected=st.integers(0, 6),
    shards=st.integers(0, 1),
    refused_tokens=st.integers(0, 2000),
)
harms = st.none() | st.builds(harm, st.integers(0, 2), st.sampled_from("ab"), left=st.integers(0, 2000))
any_facts = st.builds(
    RoundFacts,
    members=st.lists(members, max_size=6, unique_by=lambda found: found.hotkey).map(tuple),
    verdict=verdicts,
    attempt=st.none() | st.integers(0, 2),
    harm=harms,
    shards=st.integers(0, 1),
    reduced=st.booleans(),
    ended=st.sampled_from([None, None, None, Phase.COMMITTED, Phase.ABORTED]),
    failure=st.sampled_from(["", "", "bad_merge"]),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(any_facts, st.floats(0.0, 50.0)), max_size=10))
def test_phases_only_go_forward_and_a_code_never_goes_away(looks: list[tuple[RoundFacts, float]]) -> None:
    state, now_s = START, 0.0
    for facts, passed_s in looks:
        now_s += passed_s
        decision = tick(state, facts, now_s, POLICY)
        assert ORDER.index(decision.state.phase) >= ORDER.index(state.phase)
        assert decision.reason
        if state.code and decision.state.phase not in (Phase.COMMITTED, Phase.ABORTED):
            assert (decision.state.code, decision.action) == (state.code, Action.ABORT)
        if decision.action is Action.END:
            assert decision.state.phase in (Phase.COMMITTED, Phase.ABORTED)
        state = decision.state


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(any_facts, st.floats(0.0, 50.0)), max_size=8), st.sampled_from(["merged", "harm", "nothing"]))
def test_from_anywhere_silence_ends_the_round_within_its_longest_time(
    looks: list[tuple[RoundFacts, float]], outcome: str
) -> None:
    """Whatever happened before: one miner is at work, then nobody says anything more, and the driver does its part."""
    state, now_s = tick(START, RoundFacts((member("a", 10),)), 0.0, POLICY).state, 0.0
    for facts, passed_s in looks:
        now_s += passed_s
        state = tick(state, replace(facts, ended=None), now_s, POLICY).state
    facts, end_s = RoundFacts((member("stuck", 500),)), now_s + LONGEST_S + 10
    while now_s < end_s:
        decision = tick(state, facts, now_s, POLICY)
        state, action = decision.state, decision.action
        if action is Action.ABORT:
            return
        if action is Action.JUDGE:
            facts = replace(facts, verdict=Verdict(500, 1, 0, 1))
        elif action in (Action.PLAN, Action.REPLAN):
            facts = replace(facts, attempt=0 if facts.attempt is None else facts.attempt + 1)
        elif action is Action.REDUCE and outcome == "harm":
            facts = replace(facts, harm=harm(facts.attempt or 0, "stuck"))
        elif action is Action.REDUCE and outcome == "merged":
            facts = replace(facts, reduced=True)
        elif action is Action.COMMIT:
            return
        now_s += 1.0
    raise AssertionError(f"stuck in {state}")


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(any_facts, st.floats(0.0, 20.0)), max_size=8), st.lists(any_facts, min_size=3, max_size=3))
def test_whatever_the_facts_say_a_round_at_work_ends_within_the_sum_of_its_deadlines(
    looks: list[tuple[RoundFacts, float]], last: list[RoundFacts]
) -> None:
    """The worst driver: it does nothing that it is told, and its facts contradict each other."""
    state, now_s = tick(START, RoundFacts((member("a", 10),)), 0.0, POLICY).state, 0.0
    for facts, passed_s in [*looks, *zip(last, (60.0, 20.0, 30.0), strict=True)]:
        now_s += passed_s
        state = tick(state, replace(facts, ended=None, reduced=False), now_s, POLICY).state
    assert state.code, "each phase took a look at its deadline, and the round is over"


@settings(max_examples=40, deadline=None)
@given(st.booleans(), any_facts)
def test_a_state_made_from_the_log_alone_is_valid(planned: bool, facts: RoundFacts) -> None:
    state = resume(RoundId(3), Revision(2), planned, 7.0, POLICY)
    assert state.phase is (Phase.FROZEN if planned else Phase.OPEN)
    decision = tick(state, replace(facts, attempt=0 if planned else None), 7.0, POLICY)
    assert ORDER.index(decision.state.phase) >= ORDER.index(state.phase)
    assert decision.action is not Action.PLAN or not planned


def test_the_first_to_deliver_does_not_end_the_round_for_those_who_begin_late() -> None:
    early = RoundFacts((member("a", 100, delivered=True), member("b")))
    assert run(START, early, 1.0)[0].phase is Phase.OPEN
    alone = RoundFacts((member("a", 100, delivered=True), member("b", live=False)))
    assert run(START, alone, 1.0)[0].phase is not Phase.OPEN


def test_nobody_waits_for_members_that_let_earlier_rounds_down() -> None:
    talker = member("b", 900, awaited=False)
    state, _, _ = run(START, RoundFacts((member("a", 500), talker)), 1.0)
    assert state.phase is Phase.OPEN, "its tokens do not reach the target"
    state, _, _ = run(state, RoundFacts((member("a", 1000), talker)), 2.0)
    assert state.phase is Phase.CLOSING
    state, action, _ = run(state, RoundFacts((member("a", 1000, delivered=True), talker)), 3.0)
    assert (state.phase, action) == (Phase.FROZEN, Action.JUDGE)
