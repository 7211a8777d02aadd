"""What the log allows of late and adopted submissions, of plans that are made again, and of pauses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from common.runlog.entries import EntryData, Paused, PlanMember, Resumed, RoundFrozen
from common.runlog.replay import apply
from common.runlog.rules import MAX_ATTEMPTS, MAX_FAILURES, counted_tokens, plan_damping, plan_tokens
from common.runlog.state import RunState
from common.units import Revision, RoundId, sha256_hex
from tests.runlog.support import (
    ALICE,
    MINERS,
    SPEC,
    aborted,
    after,
    committed,
    frozen,
    led,
    member,
    opened,
    slot,
)

Make = Callable[[RunState], EntryData]


def code(state: RunState, data: EntryData) -> str:
    """Why an entry counts for nothing; empty when it counts."""
    void = apply(state, slot(state, data, ALICE)).void
    return void.code if void else ""


def waits(state: RunState, **changes: object) -> PlanMember:
    """A member that announced in time and was not there at the freeze."""
    refused = member(state, MINERS[2], code="not_uploaded")
    return replace(refused, decision="deferred", **changes)  # type: ignore[arg-type]  # fields by name


def deferring(state: RunState) -> RoundFrozen:
    return frozen(state, member(state, MINERS[0]), member(state, MINERS[1]), waits(state))


def second_round() -> RunState:
    """Round 1 is open on revision 1, whose plan deferred the delta of the third miner."""
    return after(led(), opened, deferring, committed, opened)


def late(state: RunState, **changes: object) -> PlanMember:
    """What the next plan says of the deferred one: by default it is taken."""
    (deferred,) = state.deferred
    taken = replace(deferred, decision="accepted", code="", tokens=deferred.tokens_claimed, weight=0.5, scale=0.5)
    return replace(taken, **changes)  # type: ignore[arg-type]  # fields by name


def test_a_deferred_submission_is_merged_by_the_next_plan_at_its_weight() -> None:
    state = second_round()
    plan = frozen(state, member(state, MINERS[0]), member(state, MINERS[2]), late(state))
    assert code(state, plan) == ""
    assert counted_tokens(SPEC, plan.base_revision, late(state)) == int(100 * SPEC.round.late_weight)
    assert plan_tokens(SPEC, plan) == 200 + int(100 * SPEC.round.late_weight)
    state = after(state, lambda s: plan, committed)
    assert state.deferred == ()
    assert state.tokens_merged == 200 + plan_tokens(SPEC, plan)


def test_a_plan_must_take_or_reject_what_the_last_one_deferred() -> None:
    state = second_round()
    assert code(state, frozen(state, member(state, MINERS[0]))) == "bad_plan"
    refused = replace(late(state), decision="rejected", code="too_late", tokens=0, weight=0.0, scale=0.0)
    assert code(state, frozen(state, member(state, MINERS[0]), refused)) == ""
    again = replace(refused, decision="deferred")
    assert code(state, frozen(state, member(state, MINERS[0]), again)) == "bad_plan"


def test_late_by_two_rounds_is_not_merged() -> None:
    state = second_round()
    deferred = late(state)
    refused = replace(deferred, decision="rejected", code="too_late", tokens=0, weight=0.0, scale=0.0)
    state = after(state, lambda s: frozen(s, member(s, MINERS[0]), refused), committed, opened)
    assert code(state, frozen(state, member(state, MINERS[0]), deferred)) == "bad_plan"


def test_what_was_deferred_survives_an_aborted_round() -> None:
    state = after(second_round(), aborted, opened)
    assert code(state, frozen(state, member(state, MINERS[0]), late(state))) == ""


def test_only_what_was_deferred_may_come_late() -> None:
    state = second_round()
    old = {"round": RoundId(0), "base_revision": Revision(0)}
    assert code(state, frozen(state, member(state, MINERS[0], **old), late(state))) == "bad_plan"
    other = late(state, delta=replace(late(state).delta, sha256=sha256_hex(b"another")))
    assert code(state, frozen(state, member(state, MINERS[0]), other)) == "bad_plan"


def test_a_submission_of_an_aborted_round_is_adopted_on_the_same_base() -> None:
    state = after(led(), opened, aborted, opened)
    adopted = member(state, MINERS[0], round=RoundId(0))
    assert code(state, frozen(state, adopted, member(state, MINERS[1]))) == ""
    both = frozen(state, adopted, member(state, MINERS[0]))
    assert code(state, both) == "bad_plan", "the newer one holds the older one's work"
    ahead = member(state, MINERS[0], round=RoundId(2))
    assert code(state, frozen(state, ahead)) == "bad_plan"
    state = after(state, frozen, committed, opened)
    assert code(state, frozen(state, member(state, MINERS[0], round=RoundId(0)))) == "bad_plan"


def rejecting(plan: RoundFrozen, count: int, attempt: int | None = None) -> RoundFrozen:
    """The next attempt, without the first ``count`` members."""
    refused = {"decision": "rejected", "code": "guard_suspect", "weight": 0.0, "scale": 0.0}
    members = tuple(
        replace(m, **refused) if i < count else m  # type: ignore[arg-type]  # fields by name
        for i, m in enumerate(plan.members)
    )
    again = replace(plan, attempt=plan.attempt + 1 if attempt is None else attempt, members=members)
    return replace(again, damping=plan_damping(SPEC, again))


def test_a_plan_is_made_again_without_suspects_and_commits() -> None:
    state = after(led(), opened, frozen)
    first = frozen(state)
    state = after(state, lambda s: rejecting(first, 1))
    assert state.open_round is not None
    assert state.open_round.plan == rejecting(first, 1)
    state = after(state, committed)
    assert state.tokens_merged == 200


@pytest.mark.parametrize(
    "spoil",
    [
        lambda plan: rejecting(plan, 0),
        lambda plan: rejecting(plan, 1, attempt=2),
        lambda plan: replace(rejecting(plan, 1), members=rejecting(plan, 1).members[1:]),
    ],
)
def test_another_attempt_only_leaves_some_out(spoil: Callable[[RoundFrozen], RoundFrozen]) -> None:
    state = after(led(), opened, frozen)
    assert code(state, spoil(frozen(state))) in ("bad_plan", "bad_transition")


def test_nothing_that_was_rejected_comes_back() -> None:
    state = after(led(), opened, frozen)
    first = frozen(state)
    state = after(state, lambda s: rejecting(first, 1))
    back = replace(first, attempt=2)
    assert code(state, back) == "bad_plan"


def test_attempts_are_bounded() -> None:
    state = after(led(), opened, frozen)
    plan = frozen(state)
    for attempt in range(1, MAX_ATTEMPTS):
        plan = rejecting(frozen(state), attempt, attempt=attempt)
        state = after(state, lambda s, plan=plan: plan)  # type: ignore[misc]
    assert code(state, rejecting(plan, MAX_ATTEMPTS, attempt=MAX_ATTEMPTS)) == "bad_plan"


def failed(state: RunState) -> RunState:
    for _ in range(MAX_FAILURES):
        state = after(state, opened, lambda s: aborted(s, "loss_guard"))
    return state


PAUSE = Paused("loss_guard", ("three rounds",))
RESUME = Resumed(sha256_hex(b"command"))


def test_after_three_failures_nothing_opens_until_the_owner_resumes() -> None:
    state = failed(led())
    assert code(state, opened(state)) == "bad_transition"
    state = after(state, lambda s: PAUSE)
    assert code(state, opened(state)) == "bad_transition"
    assert code(state, PAUSE) == "bad_transition"
    state = after(state, lambda s: RESUME, opened)
    assert state.paused is None
    assert state.failures == ()
    assert code(state, RESUME) == "bad_transition"


def test_a_commit_and_absence_are_no_failures() -> None:
    state = led()
    for _ in range(MAX_FAILURES):
        state = after(state, opened, aborted)
    assert state.failures == ()
    state = after(state, opened, lambda s: aborted(s, "bad_merge"), opened, frozen, committed)
    assert state.failures == ()


@pytest.mark.parametrize("damping", [0.0, 1.5, -1.0, 0.5])
def test_damping_is_what_the_tokens_call_for(damping: float) -> None:
    state = after(led(), opened)
    assert code(state, frozen(state, damping=damping)) == "bad_plan"
    few = frozen(state, member(state, MINERS[0], tokens=40))
    assert few.damping < 1
    assert code(state, few) == ""
    assert code(state, replace(few, damping=1.0)) == "bad_plan"


def test_a_late_weight_is_no_larger_than_the_spec_says() -> None:
    state = second_round()
    most = 100 * SPEC.round.late_weight
    fair, heavy = late(state, weight=most, scale=most), late(state, weight=100.0, scale=most)
    assert code(state, frozen(state, member(state, MINERS[0]), fair)) == ""
    assert code(state, frozen(state, member(state, MINERS[0]), heavy)) == "bad_plan"


@pytest.mark.parametrize("change", [{"uid": 7}, {"registered_block": 9}, {"manifest_sha256": sha256_hex(b"x")}])
def test_another_attempt_changes_nobody(change: dict[str, object]) -> None:
    state = after(led(), opened, frozen)
    plan = rejecting(frozen(state), 1)
    last = replace(plan.members[-1], **change)  # type: ignore[arg-type]  # fields by name
    assert code(state, replace(plan, members=(*plan.members[:-1], last))) == "bad_plan"


def test_whoever_was_merged_is_known() -> None:
    state = after(led(), opened, deferring, committed)
    assert state.merged == {(MINERS[0].hotkey, 1), (MINERS[1].hotkey, 1)}
