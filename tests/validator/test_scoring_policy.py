"""Scores at their boundaries: signs, absence, rejection, registration, aborted rounds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from common.units import Hotkey, Uid
from validator.scoring.policy import (
    Drops,
    Score,
    Work,
    average,
    forgettable,
    quality,
    score_round,
    smooth,
    supported_times,
)


def work(name: str, drop: float | None = 0.1, tokens: int = 100, **changes: object) -> Work:
    drops = None if drop is None else Drops((drop, drop), (drop, drop))
    values: dict[str, object] = {"decision": "accepted", "tokens": tokens, "drops": drops, **changes}
    return Work(Hotkey(name), Uid(1), 7, **values)  # type: ignore[arg-type]


def scores(*works: Work, before: dict[tuple[Hotkey, int], float] | None = None, committed: bool = True) -> list[Score]:
    return list(score_round(works, before or {}, committed, 4))


def test_reward_is_tokens_times_quality() -> None:
    first, second = scores(work("a", tokens=100), work("b", tokens=110))
    assert (first.round_score, second.round_score) == (100.0, 110.0)
    assert 0 < first.score < first.round_score
    assert "100 tokens" in first.why
    assert "quality 1.000" in first.why


def test_tokens_beyond_the_others_are_credited_as_far_as_the_drops_go() -> None:
    liar, *_ = scores(work("a", tokens=1000), *(work(name) for name in "bcd"))
    assert liar.round_score == 120.0
    assert "120 credited" in liar.why
    fast, *_ = scores(work("a", drop=0.1 * 4 ** (2 / 3), tokens=390), *(work(name) for name in "bcd"))
    assert fast.round_score == 390.0
    alone = scores(work("a", tokens=1000))[0]
    assert (alone.round_score, alone.evidence) == (1000.0, 0.0), "nobody to compare with"


def test_no_hotkey_is_credited_more_than_its_share() -> None:
    works = [work("a", drop=1.0, tokens=1000), *(work(name) for name in "bcd")]
    first, *_ = score_round(works, {}, True, 4, None, 0.5)
    assert first.round_score == 300.0


def test_evidence_goes_on_over_rounds_and_is_bounded() -> None:
    assert (smooth(0.0, None), smooth(0.0, 3.0), smooth(3.0, 1.0), smooth(3.0, None)) == (0.0, 3.0, 2.0, 3.0)
    assert supported_times(0.0) is None
    assert supported_times(8.0) == 8.0
    seat = (Hotkey("a"), 7)
    works = [work("a", 0.1, 250), work("b"), work("c")]
    kept = score_round(works, {}, True, 4, {seat: 2.0})[0]
    assert (kept.evidence, kept.work.tokens) == (1.5, 250)
    assert 120.0 < kept.round_score < 250.0, "one noisy round takes part of it only"


def test_two_negatives_make_no_reward() -> None:
    bad, _, _ = scores(work("a", drop=-0.1, tokens=-100), work("b"), work("c"))
    assert (bad.quality, bad.round_score, bad.score) == (0.0, 0.0, 0.0)
    harmful, _ = scores(work("a", drop=-5.0), work("b"))
    assert (harmful.quality, harmful.round_score) == (0.0, 0.0)
    alone = scores(work("a", drop=-5.0), work("b", drop=-3.0))
    assert [score.round_score for score in alone] == [0.0, 0.0]


def test_half_the_usual_drop_is_half_the_quality_and_more_than_usual_is_no_more() -> None:
    half, usual, double = scores(work("a", 0.05), work("b", 0.1), work("c", 0.2))
    assert (half.quality, usual.quality, double.quality) == (0.5, 1.0, 1.0)


def test_a_zero_drop_earns_nothing() -> None:
    nothing, _ = scores(work("a", 0.0), work("b", 0.1))
    assert nothing.round_score == 0.0


def test_absent_and_rejected_miners_decay_and_are_told_why() -> None:
    before = {(Hotkey("a"), 7): 100.0, (Hotkey("b"), 7): 100.0}
    absent, cheat, _ = scores(
        work("a", None, decision="absent"),
        work("b", None, decision="rejected", code="duplicate", reason="cosine 1.000 with another"),
        work("c"),
        before=before,
    )
    assert absent.score == cheat.score == average(100.0, 0.0, 4)
    assert absent.score < 100.0
    assert "no submission" in absent.why
    assert "duplicate: cosine 1.000" in cheat.why


def test_drops_of_a_rejected_delta_earn_nothing() -> None:
    cheat, _ = scores(work("a", 9.0, decision="rejected", code="duplicate"), work("b"))
    assert (cheat.quality, cheat.round_score) == (0.0, 0.0)


def test_a_new_registration_inherits_nothing() -> None:
    found = scores(work("a", None, decision="absent", tokens=0), before={(Hotkey("a"), 6): 100.0})
    assert found[0].score == 0.0


def test_an_aborted_round_changes_no_average() -> None:
    before = {(Hotkey("a"), 7): 100.0}
    kept = scores(work("a"), before=before, committed=False)[0]
    assert (kept.round_score, kept.score) == (0.0, 100.0)
    assert "aborted" in kept.why


def test_small_averages_are_forgotten() -> None:
    assert forgettable(0.0, 0.0)
    assert forgettable(0.001, 100.0)
    assert not forgettable(1.0, 100.0)


finite = st.floats(-1e3, 1e3)


@given(
    st.lists(
        st.tuples(finite, finite, st.integers(-(10**6), 10**6), st.sampled_from(["accepted", "rejected", "absent"])),
        max_size=8,
    ),
    st.floats(-10, 1e6),
    st.booleans(),
)
def test_nothing_is_ever_negative_and_quality_stays_in_its_range(
    rows: list[tuple[float, float, int, str]], before: float, committed: bool
) -> None:
    works = [
        Work(Hotkey(f"m{i}"), Uid(i), 7, decision, tokens=tokens, drops=Drops((assigned,), (unseen,)))
        for i, (assigned, unseen, tokens, decision) in enumerate(rows)
    ]
    averages = {(Hotkey(f"m{i}"), 7): before for i in range(len(rows))}
    for found in score_round(works, averages, committed, 4):
        assert 0.0 <= found.quality <= 1.0
        assert found.round_score >= 0.0
        assert found.score >= 0.0
        assert found.why


@given(finite, finite, st.floats(0, 1e3), st.floats(0, 1e3))
def test_quality_never_rewards_a_rise_in_loss(assigned: float, unseen: float, first: float, second: float) -> None:
    found = quality(Drops((assigned,), (unseen,)), (first, second))
    if assigned <= 0 and unseen <= 0:
        assert found == 0.0
