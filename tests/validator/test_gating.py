"""From submissions to plan members: everybody is named as the log's rules want it, rejections have codes, numbers are
exact; and a plan made again without suspects."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.codec.container import encode
from common.codec.params import F32, delta_params
from common.errors import Rejected, Retryable
from common.merge.damping import damping
from common.runlog.entries import PlanMember, RoundFrozen
from common.runlog.rules import MAX_ATTEMPTS, _check_redo, check_plan, plan_tokens
from common.runlog.state import OpenRound, RevisionNode, RunState
from common.units import Coldkey, Hotkey, Revision, RoundId, Sha256, ShardId
from tests.support.specs import tiny_spec
from tests.support.submissions import manifest_of, submission_of
from validator.checks import Finding
from validator.gating import Entrant, judge, sharing
from validator.judgement import SUSPECT, Judgement, judgement_of, without
from validator.round.tokens import Seen, Terms
from validator.submissions import Standing, Submission

COUNT = 9000
BASE, PARENT, ROUND = Revision(2), Revision(1), RoundId(5)
ABORTED, EARLIER = RoundId(4), RoundId(3)
"""The round before was aborted; the one before that made the base, and deferred somebody."""
HOTKEYS = tuple(Hotkey(f"5{name * 47}") for name in "ABCDEFGH")
A, B, C, D = HOTKEYS[:4]
SPEC = tiny_spec(
    codec=dataclasses.replace(tiny_spec().codec, density_schedule=(4096, 1024, 512)),
    gates=dataclasses.replace(tiny_spec().gates, max_share=1.0, newcomer_share=1.0),
)
TERMS = Terms(target_tokens=10_000, members=4, longest_s=60.0, slack=1.0, usual_rate=128.0)
ALL = frozenset((hotkey, 1) for hotkey in HOTKEYS)
SEEN = Seen(1.0, True, 1.0)


@functools.cache
def body_of(seed: int, base: Revision) -> bytes:
    return encode(vector(seed), delta_params(SPEC.codec, base))


def vector(seed: int) -> F32:
    """A direction that all share, and each one's own noise."""
    common = np.random.default_rng(0).standard_normal(COUNT)
    own = np.random.default_rng(seed + 1).standard_normal(COUNT)
    return (common + own).astype(np.float32)


class Bench:
    """Makes entrants and remembers their bytes."""

    def __init__(self) -> None:
        self.bodies: dict[Sha256, bytes] = {}
        self.deferred: list[PlanMember] = []

    def submission(
        self, hotkey: Hotkey, round_id: RoundId, base: Revision, *, seed: int, tokens: int = 100, at_ms: int = 0
    ) -> Submission:
        body = body_of(seed, base)
        manifest = manifest_of(hotkey, round_id=round_id, base=base, tokens=tokens, final=True, body=body)
        self.bodies[manifest.delta.sha256] = body
        return submission_of(manifest, received_ms=at_ms)

    def fresh(self, hotkey: Hotkey, finding: Finding | None = Finding(), **told: int) -> Entrant:
        return self._entrant("fresh", self.submission(hotkey, ROUND, BASE, **_seeded(hotkey, told)), finding)

    def adopted(self, hotkey: Hotkey, **told: int) -> Entrant:
        return self._entrant("adopted", self.submission(hotkey, ABORTED, BASE, **_seeded(hotkey, told)), Finding())

    def late(self, hotkey: Hotkey, finding: Finding | None = Finding(), *, again: bool = True, **told: int) -> Entrant:
        submission = self.submission(hotkey, EARLIER, PARENT, **_seeded(hotkey, told, 50))
        entrant = self._entrant("late", submission, finding)
        member = judged(self, [dataclasses.replace(entrant, standing=_incomplete(entrant.standing))], ()).members[0]
        self.deferred.append(member)
        standing = Standing("late", entrant.standing.submission if again else None, member)
        return dataclasses.replace(entrant, standing=standing)

    def _entrant(self, kind: str, submission: Submission, finding: Finding | None) -> Entrant:
        there = dataclasses.replace(submission, finding=finding, arrived_s=None if finding is None else 1.0)
        return Entrant(Standing(kind, there), SEEN, None)  # type: ignore[arg-type]

    def read(self, submission: Submission) -> bytes:
        return self.bodies[submission.manifest.delta.sha256]

    def run(self) -> RunState:
        nodes = {
            Revision(0): RevisionNode(Revision(0), None, None, (), 0, 0),
            PARENT: RevisionNode(PARENT, Revision(0), RoundId(1), (), 1, 1),
            BASE: RevisionNode(BASE, PARENT, EARLIER, (), 1, 2),
        }
        opened = OpenRound(ROUND, BASE, 0)
        return RunState(
            SPEC, 9, Sha256("0" * 64), nodes, BASE, RoundId(6), open_round=opened, deferred=tuple(self.deferred)
        )


def _seeded(hotkey: Hotkey, told: dict[str, int], offset: int = 0) -> dict[str, int]:
    return {"seed": HOTKEYS.index(hotkey) + offset, **told}


def _incomplete(standing: Standing) -> Standing:
    assert standing.submission is not None
    return Standing("fresh", dataclasses.replace(standing.submission, finding=None))


def judged(bench: Bench, entrants: Sequence[Entrant], merged: Iterable[tuple[Hotkey, int]] = ALL) -> Judgement:
    return judge(SPEC, BASE, frozenset(merged), entrants, {ShardId(0): COUNT}, bench.read, TERMS)


def one(found: Judgement, hotkey: Hotkey, round_id: RoundId = ROUND) -> PlanMember:
    (member,) = (m for m in found.members if (m.hotkey, m.round) == (hotkey, round_id))
    return member


def test_every_entrant_is_named_in_order_and_numbers_are_exact() -> None:
    bench = Bench()
    bad = Finding("non_finite", "a value is not a number")
    entrants = [bench.fresh(D, bad), bench.fresh(A), bench.fresh(C, None), bench.fresh(B)]
    found = judged(bench, entrants)
    assert check_plan(bench.run(), found.plan(ROUND, BASE, 0)) == ""
    assert [m.decision for m in found.members] == ["accepted", "accepted", "deferred", "rejected"]
    assert one(found, C).code == "incomplete"
    assert one(found, D).code == "non_finite"
    accepted = one(found, A)
    assert (accepted.code, accepted.tokens) == ("", 100)
    for exact in (accepted.weight, accepted.scale, found.damping):
        assert float(np.float32(exact)) == exact
    assert (found.verdict.tokens, found.verdict.accepted, found.verdict.rejected, found.verdict.deferred) == (
        200,
        2,
        1,
        1,
    )
    assert found.verdict.refused_tokens == 100


def test_a_late_one_counts_less_and_is_decoded_as_its_own_base_prescribes() -> None:
    bench = Bench()
    entrants = [bench.fresh(A), bench.fresh(B), bench.late(C), bench.fresh(C)]
    found = judged(bench, entrants)
    assert check_plan(bench.run(), found.plan(ROUND, BASE, 0)) == ""
    late, own = one(found, C, EARLIER), one(found, C)
    assert (late.decision, late.base_revision, late.tokens) == ("accepted", PARENT, 100)
    assert late.weight == pytest.approx(SPEC.round.late_weight * own.weight)
    assert found.verdict.tokens == plan_tokens(SPEC, found.plan(ROUND, BASE, 0)) == 350
    assert found.watched == {A: (100, 1.0), B: (100, 1.0), C: (100, 1.0)}, "late work proves no rate of this round"


@pytest.mark.parametrize("again", [True, False])
def test_a_late_one_that_has_not_come_is_rejected_as_too_late(again: bool) -> None:
    bench = Bench()
    found = judged(bench, [bench.fresh(A), bench.late(B, None, again=again)])
    assert check_plan(bench.run(), found.plan(ROUND, BASE, 0)) == ""
    assert (one(found, B, EARLIER).decision, one(found, B, EARLIER).code) == ("rejected", "too_late")
    assert found.verdict.refused_tokens == 0, "it says nothing of what was delivered"


def test_an_adopted_one_keeps_its_round_and_its_whole_weight() -> None:
    bench = Bench()
    found = judged(bench, [bench.fresh(A), bench.adopted(B)])
    assert check_plan(bench.run(), found.plan(ROUND, BASE, 0)) == ""
    assert one(found, B, ABORTED).weight == one(found, A).weight


def test_few_tokens_make_a_smaller_step() -> None:
    bench = Bench()
    found = judged(bench, [bench.fresh(A, tokens=40)])
    assert found.damping == damping(40, SPEC.target_tokens(BASE), SPEC.gates.damping_at) < 1
    assert judged(bench, [bench.fresh(A, tokens=128)]).damping == 1.0


def test_newcomers_together_have_a_bounded_share() -> None:
    spec = dataclasses.replace(SPEC, gates=dataclasses.replace(SPEC.gates, newcomer_share=0.25))
    bench = Bench()
    entrants = [bench.fresh(hotkey) for hotkey in HOTKEYS]
    old = {(hotkey, 1) for hotkey in HOTKEYS[:4]} | {(HOTKEYS[4], 7)}
    found = judge(spec, BASE, old, entrants, {ShardId(0): COUNT}, bench.read, TERMS)
    weights = [member.weight for member in found.members]
    assert sum(weights[4:]) / sum(weights) == pytest.approx(0.25, rel=1e-4), "another registration is a newcomer too"


def test_tokens_beyond_time_and_evidence_do_not_count() -> None:
    bench = Bench()
    terms = dataclasses.replace(TERMS, usual_rate=30.0)
    supports = (None, 1.0, 3.0, 8.0)
    entrants = [
        dataclasses.replace(bench.fresh(hotkey), support=times)
        for hotkey, times in zip((A, B, C, D), supports, strict=True)
    ]
    found = judge(SPEC, BASE, ALL, entrants, {ShardId(0): COUNT}, bench.read, terms)
    assert [member.tokens for member in found.members] == [60, 60, 90, 100]
    assert "60 of 100" in one(found, A).reason
    assert found.watched[A] == (60, 1.0)


def test_of_two_copies_the_later_one_is_rejected() -> None:
    bench = Bench()
    copy, original = bench.fresh(A, seed=3, at_ms=9), bench.fresh(B, seed=3, at_ms=5)
    found = judged(bench, [copy, original, bench.fresh(C, at_ms=20)])
    assert one(found, A).code == "duplicate"
    assert one(found, B).decision == "accepted"


def test_a_deleted_object_is_a_rejection_but_an_outage_decides_nothing() -> None:
    bench = Bench()
    entrants = [bench.fresh(A), bench.fresh(B)]

    def gone(submission: Submission) -> bytes:
        if submission.manifest.signer == A:
            raise Rejected("object_missing", "no object")
        return bench.read(submission)

    def damaged(submission: Submission) -> bytes:
        return bytes(100) if submission.manifest.signer == A else bench.read(submission)

    def away(_: Submission) -> bytes:
        raise Retryable("no connection")

    # What the storage has lost is not its sender's fault, who keeps all of it.
    for read, code in ((gone, "not_uploaded"), (damaged, "wrong_size")):
        found = judge(SPEC, BASE, ALL, entrants, {ShardId(0): COUNT}, read, TERMS)
        assert [(m.decision, m.code) for m in found.members] == [("rejected", code), ("accepted", "")]
    with pytest.raises(Retryable):
        judge(SPEC, BASE, ALL, entrants, {ShardId(0): COUNT}, away, TERMS)


def test_the_dead_whose_work_is_adopted_take_no_share_of_the_target() -> None:
    bench = Bench()
    entrants = [bench.fresh(A), bench.adopted(B), bench.adopted(C)]
    assert sharing(entrants, lambda hotkey: hotkey == C) == 2
    assert sharing(entrants, lambda hotkey: False) == 1


def test_without_submissions_there_is_nothing_to_merge() -> None:
    found = judged(Bench(), [])
    assert (found.members, found.verdict.tokens, found.verdict.shards) == ((), 0, 0)


def test_a_plan_without_suspects_gives_their_weight_to_the_others() -> None:
    spec = dataclasses.replace(SPEC, gates=dataclasses.replace(SPEC.gates, max_share=0.4))
    bench = Bench()
    few = [bench.fresh(hotkey, tokens=20) for hotkey in (B, C, D)]
    entrants = [bench.fresh(A, tokens=250), *few, bench.late(D, tokens=20)]
    found = judge(spec, BASE, ALL, entrants, {ShardId(0): COUNT}, bench.read, TERMS)
    left = without(spec, BASE, ALL, found, {D: "alone it would make 9.1 of 3.2"})
    assert [m.decision for m in left.members] == ["accepted"] * 3 + ["rejected"] * 2, "all that a suspect sent"
    assert one(left, D).code == SUSPECT
    assert "9.1" in one(left, D).reason
    assert one(left, A).weight != one(found, A).weight, "its share is of fewer now"
    assert left.verdict.accepted == 3
    assert D not in left.watched
    with pytest.raises(ValueError, match="at least one accepted"):
        without(spec, BASE, ALL, left, {D: "again"})


def test_a_plan_in_the_log_can_be_taken_up_by_another_leader() -> None:
    bench = Bench()
    found = judged(bench, [bench.fresh(A), bench.fresh(B), bench.fresh(C, None)])
    coldkeys = {hotkey: Coldkey(f"cold-{hotkey}") for hotkey in (A, B)}
    again = judgement_of(SPEC, found.plan(ROUND, BASE, 0), coldkeys)
    assert (again.members, again.damping, again.verdict) == (found.members, found.damping, found.verdict)
    suspects = {A: "why"}
    ours, theirs = (without(SPEC, BASE, ALL, judgement, suspects) for judgement in (found, again))
    assert ours.members == theirs.members


findings = st.sampled_from([Finding(), Finding(), None, Finding("non_finite", "NaN")])
kinds = st.sampled_from(["fresh", "fresh", "adopted", "none"])
people = st.tuples(kinds, findings, st.sampled_from(["", "", "late", "silent"]), findings, st.integers(1, 3000))


@settings(max_examples=40, deadline=None)
@given(st.lists(people, min_size=1, max_size=len(HOTKEYS)), st.sets(st.sampled_from(HOTKEYS)), st.integers(0, 6))
def test_whatever_was_submitted_the_logs_rules_accept_the_plan_and_what_is_left_of_it(
    history: list[tuple[str, Finding | None, str, Finding | None, int]], merged: set[Hotkey], suspect: int
) -> None:
    bench = Bench()
    entrants: list[Entrant] = []
    for hotkey, (kind, finding, late, late_finding, tokens) in zip(HOTKEYS, history, strict=False):
        if late:
            entrants.append(bench.late(hotkey, late_finding, again=late == "late", tokens=tokens))
        if kind == "fresh":
            entrants.append(bench.fresh(hotkey, finding, tokens=tokens))
        elif kind == "adopted":
            entrants.append(bench.adopted(hotkey, tokens=tokens))
    found = judged(bench, entrants, {(hotkey, 1) for hotkey in merged})
    run, plan = bench.run(), found.plan(ROUND, BASE, 0)
    assert check_plan(run, plan) == ""
    assert len(plan.members) == len(entrants)
    assert found.verdict.tokens == plan_tokens(SPEC, plan)
    _redo_until_empty(run, plan, found, suspect)


def _redo_until_empty(run: RunState, plan: RoundFrozen, found: Judgement, suspect: int) -> None:
    """The log's rules take each attempt after the one before; checked as replay does."""
    for attempt in range(1, MAX_ATTEMPTS):
        accepted = [member.hotkey for member in found.members if member.decision == "accepted"]
        if not accepted:
            return
        found = without(SPEC, BASE, ALL, found, {accepted[suspect % len(accepted)]: "suspected"})
        after = found.plan(ROUND, BASE, attempt)
        assert check_plan(run, after) == ""
        assert _check_redo(plan, after) == ""
        plan = after
