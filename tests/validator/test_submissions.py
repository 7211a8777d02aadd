"""Drips and finals of a line, deferred ones, what aborted rounds left: one of each is named, receipts are kept."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import Rejected
from common.records import Manifest
from common.runlog.entries import PlanMember
from common.units import Hotkey, Revision, RoundId, ShardId, Uid
from tests.support.submissions import manifest_of, record_of, submission_of
from validator.checks import Finding
from validator.submissions import Kind, Submission, Submissions

A, B = Hotkey("a"), Hotkey("b")
BAD = Finding("non_finite", "a value is not a number")


def fresh(most: int = 64, deferred: tuple[PlanMember, ...] = ()) -> Submissions:
    return Submissions(RoundId(3), Revision(2), deferred, most)


def announce(held: Submissions, manifest: Manifest, received_ms: int = 0) -> Submission:
    known = held.admit(manifest, record_of(manifest, "manifest"))
    if known is not None:
        return known
    submission = submission_of(manifest, received_ms=received_ms)
    held.add(submission)
    return submission


def bring(held: Submissions, manifest: Manifest, received_ms: int = 0) -> Submission:
    return held.arrive(announce(held, manifest, received_ms), received_ms / 1000 + 1)


def named(held: Submissions) -> list[tuple[Kind, Hotkey, int]]:
    """Kind, sender and tokens of what the plan would name."""
    return [(s.kind, s.order[1], s.submission.manifest.tokens if s.submission else -1) for s in held.for_plan()]


def refusal(held: Submissions, manifest: Manifest) -> str:
    with pytest.raises(Rejected) as refused:
        held.admit(manifest, record_of(manifest, "manifest"))
    return refused.value.code


def deferred_of(manifest: Manifest) -> PlanMember:
    return PlanMember(
        shard=manifest.shard,
        hotkey=manifest.signer,
        round=manifest.round,
        base_revision=manifest.base_revision,
        uid=Uid(1),
        registered_block=1,
        delta=manifest.delta,
        manifest_sha256=record_of(manifest, "manifest").sha256,
        tokens_claimed=manifest.tokens,
        tokens=manifest.tokens,
        decision="deferred",
        code="incomplete",
        reason="",
        weight=0.0,
        scale=0.0,
    )


def test_of_drips_the_newest_complete_one_counts_and_a_final_ends_the_line() -> None:
    held = fresh()
    bring(held, manifest_of(A, tokens=10), 1)
    announce(held, manifest_of(A, tokens=20), 2)
    assert named(held) == [("fresh", A, 10)], "the second is not there yet"
    bring(held, manifest_of(A, tokens=30), 3)
    bring(held, manifest_of(A, tokens=20), 2)
    assert named(held) == [("fresh", A, 30)], "an older one that comes later replaces nothing"
    assert not held.delivered(A)
    final = bring(held, manifest_of(A, tokens=40, final=True), 4)
    assert not held.delivered(A), "nobody has read it"
    held.settle(final, Finding(), 5.0)
    assert held.delivered(A)
    assert refusal(held, manifest_of(A, tokens=50)) == "already_submitted"


def test_the_same_manifest_gives_the_same_receipt_before_and_after_the_freeze() -> None:
    held = fresh()
    first = announce(held, manifest_of(A))
    assert held.admit(first.manifest, first.stored.manifest_record) == first
    held.closed = True
    assert held.admit(first.manifest, first.stored.manifest_record) == first
    assert refusal(held, manifest_of(A, tokens=7)) == "round_closed"


def test_without_anything_complete_the_newest_announced_is_named() -> None:
    held = fresh()
    announce(held, manifest_of(A, tokens=10), 1)
    announce(held, manifest_of(A, tokens=20), 2)
    (standing,) = held.for_plan()
    assert standing.submission is not None
    assert (standing.submission.manifest.tokens, standing.submission.complete) == (20, False)


def test_what_turns_out_not_to_be_there_uncovers_the_older_drip() -> None:
    held = fresh()
    bring(held, manifest_of(A, tokens=10), 1)
    newer = bring(held, manifest_of(A, tokens=20), 2)
    assert held.unchecked() == (newer,)
    held.closed = True
    held.settle(newer, Finding("not_uploaded", "gone"), 3.0, last_call=True)
    assert named(held) == [("fresh", A, 10)]
    (older,) = held.unchecked()
    held.settle(older, Finding(), 3.0, last_call=True)
    assert held.unchecked() == ()


def test_a_bad_delta_stands_for_its_line_and_its_tokens_count_for_nothing() -> None:
    held = fresh()
    bring(held, manifest_of(A, tokens=10), 1)
    held.settle(announce(held, manifest_of(A, tokens=20, final=True), 2), BAD, 2.0)
    assert named(held) == [("fresh", A, 20)]
    assert (held.held()[A].delivered, held.held()[A].tokens) == (True, 0)


def test_a_delta_has_one_manifest_but_a_final_may_take_its_drips_place() -> None:
    held = fresh()
    drip = bring(held, manifest_of(A, tokens=10, body=b"x"), 1)
    assert refusal(held, manifest_of(A, tokens=11, body=b"x")) == "already_announced"
    final = announce(held, manifest_of(A, tokens=10, body=b"x", final=True), 2)
    found = held.find(final.name)
    assert found is not None
    assert (found.final, found.arrived_s) == (True, drip.arrived_s), "its bytes are there already"
    assert refusal(held, manifest_of(A, tokens=12, body=b"x")) == "already_announced"
    assert len(held.for_plan()) == 1


def test_a_line_brings_a_bounded_number_of_manifests() -> None:
    held = fresh(most=2)
    announce(held, manifest_of(A, tokens=1))
    announce(held, manifest_of(A, tokens=2))
    assert refusal(held, manifest_of(A, tokens=3)) == "too_many_submissions"
    announce(held, manifest_of(A, tokens=2)), announce(held, manifest_of(B, tokens=3))


def test_what_is_newer_is_told_by_the_work_in_it_and_not_by_the_clocks_of_two_leaders() -> None:
    held = fresh()
    bring(held, manifest_of(A, tokens=3200), 9_000)
    bring(held, manifest_of(A, tokens=6400), 1_000)
    assert named(held) == [("fresh", A, 6400)], "the second leader's clock is behind the first's"


def test_a_late_one_is_receipted_again_and_named_whether_it_comes_or_not() -> None:
    late, other = manifest_of(A, round_id=2, base=1, tokens=77), manifest_of(B, round_id=2, base=1, tokens=55)
    held = fresh(deferred=(deferred_of(late), deferred_of(other)))
    announce(held, manifest_of(A, tokens=10))
    submission = announce(held, late)
    assert announce(held, late) == submission, "the same receipt again"
    assert refusal(held, replace(late, tokens=78)) == "already_announced"
    held.arrive(submission, 1.0)
    assert named(held) == [("late", A, 77), ("fresh", A, 10), ("late", B, -1)], "ordered by sender, then by round"
    assert held.unchecked() == (held.find(submission.name),)
    assert held.came() == {A}
    assert held.held()[A].tokens == 0, "what is late is not this round's"


def test_what_is_deferred_is_named_with_the_manifest_that_lies_beside_it() -> None:
    held, wrong = fresh(), Finding("checksum_mismatch", "the object's bytes are not the announced ones")
    drip = bring(held, manifest_of(A))
    final = announce(held, replace(manifest_of(A), final=True))
    assert final.name == drip.name
    held.settle(final, wrong, 2.0, kept=drip.stored)
    [standing] = held.for_plan()
    assert standing.submission is not None
    assert not standing.submission.complete
    assert standing.submission.receipt.manifest_sha256 == drip.receipt.manifest_sha256


def test_a_manifest_that_got_no_receipt_counts_for_nothing() -> None:
    held = fresh(most=1)
    for _ in range(3):
        assert held.admit(manifest_of(A), record_of(manifest_of(A), "manifest")) is None, "told to come later"
    announce(held, manifest_of(A))
    assert refusal(held, manifest_of(A, tokens=3)) == "too_many_submissions"


def test_nothing_of_other_rounds_is_taken() -> None:
    held = fresh()
    for round_id in (1, 2, 4):
        assert refusal(held, manifest_of(A, round_id=round_id)) == "wrong_round"


def test_what_aborted_rounds_left_on_the_base_is_adopted_until_its_sender_brings_something_whole() -> None:
    before = fresh()
    bring(before, manifest_of(A, tokens=10), 1)
    announce(before, manifest_of(B, tokens=20), 2)
    held = Submissions(RoundId(4), Revision(2))
    held.carry(before)
    assert named(held) == [("adopted", A, 10)], "what had not come whole is sent anew"
    assert not held.delivered(A)
    again = manifest_of(B, tokens=20)
    assert held.admit(again, record_of(again, "manifest")) is not None, "but may still arrive"
    announce(held, manifest_of(A, round_id=4, tokens=15), 3)
    assert named(held) == [("adopted", A, 10)]
    bring(held, manifest_of(A, round_id=4, tokens=18), 4)
    assert named(held) == [("fresh", A, 18)]
    third = Submissions(RoundId(5), Revision(2))
    third.carry(held)
    assert named(third) == [("adopted", A, 18)]


def test_after_a_commit_only_what_the_plan_deferred_is_carried() -> None:
    before = fresh()
    bring(before, manifest_of(A, tokens=10), 1)
    late = announce(before, manifest_of(B, tokens=20), 2)
    held = Submissions(RoundId(4), Revision(3), (deferred_of(late.manifest),))
    held.carry(before)
    assert named(held) == [("late", B, 20)]
    assert held.admit(late.manifest, late.stored.manifest_record) == late


def test_after_the_freeze_only_the_leaders_own_last_look_changes_anything() -> None:
    held = fresh()
    submission = announce(held, manifest_of(A))
    held.closed = True
    assert held.unfinished() == (submission,)
    with pytest.raises(Rejected, match="frozen"):
        held.arrive(submission, 1.0)
    with pytest.raises(Rejected, match="frozen"):
        held.settle(submission, Finding(), 1.0)
    held.settle(submission, Finding(), 1.0, last_call=True)
    assert named(held) == [("fresh", A, 100)]


def test_what_is_held_tells_what_is_on_its_way() -> None:
    held = fresh()
    bring(held, manifest_of(A, tokens=10), 1000)
    assert (held.held()[A].tokens, held.held()[A].coming_bytes) == (10, 0)
    announce(held, manifest_of(A, tokens=20, final=True, size=5000), 2000)
    found = held.held()[A]
    assert (found.tokens, found.coming_bytes, found.coming_since_s, found.announced) == (10, 5000, 2.0, True)


def test_all_shards_of_a_sender_have_to_be_delivered() -> None:
    held = fresh()
    held.settle(announce(held, manifest_of(A, final=True)), Finding(), 1.0)
    assert held.delivered(A)
    announce(held, manifest_of(A, shard=1, final=True))
    assert not held.delivered(A)
    held.settle(announce(held, manifest_of(A, shard=1, final=True)), Finding(), 1.0)
    assert held.delivered(A)
    assert [s.order[0] for s in held.for_plan()] == [ShardId(0), ShardId(1)]


steps = st.lists(
    st.tuples(
        st.sampled_from(["announce", "arrive", "check", "bad", "lose", "abort"]),
        st.sampled_from("ab"),
        st.integers(1, 4),
        st.booleans(),
    ),
    max_size=25,
)


@settings(max_examples=150, deadline=None)
@given(steps)
def test_whatever_happens_every_line_is_named_once_by_its_newest_complete_delta(
    history: list[tuple[str, str, int, bool]],
) -> None:
    held = fresh()
    for now_ms, (what, who, tokens, final) in enumerate(history):
        manifest = manifest_of(
            who, round_id=held.round, tokens=tokens, final=final, body=f"{who}{tokens}{final}".encode()
        )
        try:
            _do(held, what, manifest, now_ms)
        except Rejected:
            continue
        if what == "abort":
            held, before = Submissions(RoundId(held.round + 1), Revision(2)), held
            held.carry(before)
        _check(held)


def _do(held: Submissions, what: str, manifest: Manifest, now_ms: int) -> None:
    if what == "announce":
        announce(held, manifest, now_ms)
    found = held.find((manifest.round, manifest.shard, manifest.signer, manifest.delta.sha256))
    if found is not None and what == "arrive":
        held.arrive(found, now_ms / 1000)
    elif found is not None and what != "announce":
        finding = {"check": Finding(), "bad": BAD, "lose": Finding("not_uploaded", "")}.get(what, Finding())
        held.settle(found, finding, now_ms / 1000)


def _check(held: Submissions) -> None:
    named_lines = [(s.order[0], s.order[1]) for s in held.for_plan()]
    assert named_lines == sorted(set(named_lines))
    for standing in held.for_plan():
        assert standing.submission is not None
        assert held.find(standing.submission.name) == standing.submission
        of_line = [s for s in held.everything() if s.line == standing.submission.line]
        complete = [s for s in of_line if s.complete]
        if complete:
            best = max(complete, key=lambda s: (s.manifest.round, s.receipt.received_ms))
            assert (standing.submission.manifest.round, standing.submission.receipt.received_ms) == (
                best.manifest.round,
                best.receipt.received_ms,
            )
        else:
            assert standing.kind == "fresh"
    current = {s.line for s in held.everything() if s.manifest.round == held.round}
    assert current <= set(named_lines), "every line with a receipt of this round is named"
