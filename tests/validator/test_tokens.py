"""Which tokens of a claim count: nothing that a miner says lets it count for more than time and proof allow."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import example, given
from hypothesis import strategies as st

from common.units import Hotkey
from validator.round.tokens import (
    FIRST_SHARE,
    KEPT,
    UNSUPPORTED,
    Seen,
    Terms,
    most_tokens,
    proven_rates,
    round_usual,
    usual_rate,
    validated_tokens,
)

HUGE = 2**53 - 1
TERMS = Terms(target_tokens=10_000, members=4, longest_s=60.0, slack=1.1, usual_rate=100.0)
NOTHING_PROVEN = replace(TERMS, usual_rate=None)
WATCHED = Seen(10.0, True)

seconds = st.one_of(st.none(), st.floats(0, 1e6))
seen = st.builds(Seen, seconds, st.booleans(), worked_s=st.floats(0, 1e6), earlier=st.booleans())
rates = st.one_of(st.none(), st.floats(1e-3, 1e9))
terms = st.builds(Terms, st.integers(1, 10**12), st.integers(0, 256), st.floats(1, 1e5), st.floats(1, 2), rates)
held = st.floats(0, 1e6)
HELD = replace(TERMS, held_s=600.0)


def test_a_claim_near_the_usual_counts_whole_without_evidence() -> None:
    assert validated_tokens(1000, WATCHED, None, TERMS)[0] == 1000
    assert validated_tokens(2000, WATCHED, 0.5, TERMS)[0] == 2000, "little evidence is no worse than none"


def test_a_claim_beyond_it_counts_as_far_as_evidence_goes() -> None:
    tokens, why = validated_tokens(5000, WATCHED, None, TERMS)
    assert tokens == int(10.0 * 100.0 * UNSUPPORTED)
    assert f"{tokens} of 5000" in why
    assert validated_tokens(5000, WATCHED, 4.0, TERMS)[0] == int(10.0 * 100.0 * 4.0 * 1.1)
    assert validated_tokens(4000, WATCHED, 4.0, TERMS)[0] == 4000


def test_nothing_proven_is_no_reason_to_believe() -> None:
    first = int(FIRST_SHARE * 10_000 / 4)
    assert validated_tokens(HUGE, WATCHED, None, NOTHING_PROVEN)[0] == first
    assert validated_tokens(HUGE, Seen(None, False), 8.0, NOTHING_PROVEN)[0] == first
    alone = replace(NOTHING_PROVEN, members=1)
    assert validated_tokens(HUGE, WATCHED, None, alone)[0] == 11_000, "at most the target"


def test_one_that_nobody_watched_is_bounded_by_the_rounds_longest_time() -> None:
    slow = replace(TERMS, usual_rate=50.0)
    assert validated_tokens(HUGE, Seen(None, False), None, slow)[0] == int(60.0 * 50.0 * UNSUPPORTED)


def rates_of(*values: float) -> dict[Hotkey, float]:
    return {Hotkey(name): value for name, value in zip("abcd", values, strict=False)}


def test_the_usual_rate_follows_a_speed_up_of_all_and_of_nobody_else() -> None:
    proven = rates_of(100.0, 100.0, 100.0, 100.0)
    assert round_usual({}, rates_of(5.0)) is None
    assert round_usual(proven, {}) == 100.0
    assert round_usual(proven, rates_of(300.0, 300.0, 310.0, 290.0)) == 300.0
    assert round_usual(proven, rates_of(1e12, 100.0, 110.0, 90.0)) == 100.0, "one liar moves nothing"
    assert round_usual(proven, rates_of(1e12, 0.0, 0.0, 0.0)) == 100.0, "nor by speaking first"
    assert round_usual(proven, rates_of(30.0, 30.0, 30.0, 30.0)) == 100.0, "a slower round cuts nobody"
    assert round_usual(rates_of(100.0), rates_of(700.0)) == 700.0, "one alone is its own measure"


def test_a_proof_is_what_was_merged_and_fades_slowly() -> None:
    assert proven_rates({Hotkey("a"): (10, 10.0)}, {Hotkey("a"): 100.0}) == {Hotkey("a"): KEPT * 100.0}
    assert proven_rates({Hotkey("a"): (3000, 10.0)}, {Hotkey("a"): 100.0}) == {Hotkey("a"): 300.0}
    assert usual_rate([]) is None


def test_an_hour_of_work_in_a_round_that_was_held_open_counts_as_an_hour() -> None:
    worked = Seen(630.0, True)
    assert validated_tokens(63_000, worked, None, TERMS)[0] == 11_000
    assert validated_tokens(63_000, worked, None, HELD)[0] == 63_000
    assert validated_tokens(630_000, worked, None, HELD)[0] == 630 * 200, "ten times as much is what its time allows"
    tokens, why = validated_tokens(HUGE, Seen(700.0, True), None, HELD)
    assert tokens == 11_000 + 600 * 200
    assert "600 s for which it was held open" in why
    alone = replace(HELD, members=1)
    assert validated_tokens(63_000, worked, None, alone)[0] == 63_000, "nor does it need others"


def test_one_that_joined_late_in_it_gains_no_more_than_its_own_time() -> None:
    assert validated_tokens(HUGE, Seen(10.0, True), None, HELD)[0] == int(10 * 100 * UNSUPPORTED)
    early, late = Seen(None, False, worked_s=700.0), Seen(None, False, worked_s=10.0)
    slow = replace(HELD, usual_rate=5.0)
    assert most_tokens(early, None, slow) == (60 + 600) * 5 * 2
    assert most_tokens(late, None, slow) == (60 + 10) * 5 * 2, "nobody heard of it in the other 590 s"


def test_time_without_a_leader_is_a_members_from_before_and_no_strangers() -> None:
    """Of 600 s held the new leader heard nobody in 500."""
    after = replace(HELD, usual_rate=5.0, unheard_s=500.0)
    member = Seen(None, False, worked_s=100.0, earlier=True)
    assert most_tokens(member, None, after) == (60 + 600) * 5 * 2
    assert most_tokens(replace(member, earlier=False), None, after) == (60 + 100) * 5 * 2
    assert most_tokens(replace(member, worked_s=0.0), None, after) == (60 + 500) * 5 * 2, "it rested since"
    assert most_tokens(Seen(None, False), None, after) == 60 * 5 * 2, "as much as in a round that was not held"


@given(terms, held, held, st.floats(0, 1e6), st.booleans(), rates)
def test_one_with_an_unknown_beginning_gains_no_more_than_its_work_and_what_nobody_heard(
    at: Terms, held_s: float, unheard_s: float, worked_s: float, earlier: bool, support: float | None
) -> None:
    watched = Seen(None, False, worked_s=worked_s, earlier=earlier)
    most = most_tokens(watched, support, replace(at, held_s=held_s, unheard_s=min(unheard_s, held_s)))
    own_s = worked_s + (min(unheard_s, held_s) if earlier else 0.0)
    assert most == most_tokens(replace(watched, worked_s=own_s, earlier=False), support, replace(at, held_s=held_s))
    assert most <= most_tokens(watched, support, replace(at, held_s=own_s, unheard_s=own_s))


def test_before_any_rate_is_proven_the_fair_share_grows_as_the_round_does() -> None:
    first = replace(NOTHING_PROVEN, held_s=600.0)
    assert most_tokens(Seen(650.0, True), None, first) == int(FIRST_SHARE * 10_000 / 4 * (60 + 600) / 60)
    assert most_tokens(Seen(30.0, True), 8.0, first) == int(FIRST_SHARE * 10_000 / 4 * 1.5), "it was there for 30 s"
    assert most_tokens(Seen(None, False), None, first) == int(FIRST_SHARE * 10_000 / 4)


def test_what_a_hold_adds_is_not_raised_by_a_whole_round_of_claims() -> None:
    fast = replace(HELD, usual_rate=1e9, proven_rate=100.0)
    assert most_tokens(Seen(630.0, True), None, fast) == 11_000 + 600 * 200


@example(Seen(None, False), 727.0, Terms(1, 0, 1.0, 1.0, 230585344.75), 76292.0, 0.0078125)
@given(seen, rates, terms, held, held)
def test_a_longer_hold_adds_what_is_proven_and_never_takes(
    watched: Seen, support: float | None, at: Terms, one_s: float, more_s: float
) -> None:
    short, long = (most_tokens(watched, support, replace(at, held_s=s)) for s in (one_s, one_s + more_s))
    assert most_tokens(watched, support, at) <= short <= long
    rate = FIRST_SHARE * at.target_tokens * at.slack / at.longest_s if at.usual_rate is None else at.usual_rate
    times = max(UNSUPPORTED, (support or 0.0) * at.slack)
    rounding = 2 + long * 2.0**-50  # both are float64 products, of which the difference is taken
    assert long - short <= more_s * rate * times * (1 + 1e-9) + rounding
    if watched.seconds is not None and at.usual_rate is not None:
        assert long <= watched.seconds * at.usual_rate * times * (1 + 1e-9)


@given(st.integers(0, HUGE), seen, rates, terms)
def test_never_more_than_claimed_nor_than_the_target_and_never_negative(
    claimed: int, watched: Seen, support: float | None, at: Terms
) -> None:
    tokens, why = validated_tokens(claimed, watched, support, at)
    assert 0 <= tokens <= min(claimed, int(at.target_tokens * at.slack))
    assert why
    assert tokens == min(claimed, most_tokens(watched, support, at)), "every look at the round counts the same"


@given(st.floats(0, 1e5), st.one_of(st.none(), st.floats(0.1, 8)), st.floats(1e-3, 1e6))
def test_what_can_count_is_bounded_by_the_usual_and_the_evidence(
    time_s: float, support: float | None, usual: float
) -> None:
    at = replace(TERMS, target_tokens=10**15, usual_rate=usual)
    most = most_tokens(Seen(time_s, True), support, at)
    assert int(UNSUPPORTED * time_s * usual) <= most + 1
    assert most <= time_s * usual * max(UNSUPPORTED, (support or 0.0) * at.slack) * (1 + 1e-9) + 1


@given(st.lists(st.floats(0, 1e9), min_size=3, max_size=4), st.floats(0, 1e15))
def test_no_claim_of_one_moves_the_usual_beyond_the_others(claims: list[float], lie: float) -> None:
    proven = rates_of(*[100.0] * len(claims))
    moved = round_usual(proven, {**rates_of(*claims), Hotkey("a"): lie})
    assert moved is not None
    assert moved <= max(100.0, *claims[1:]) * (1 + 1e-9)


@given(st.dictionaries(st.sampled_from([Hotkey(c) for c in "abcdef"]), st.tuples(st.integers(0, HUGE), seconds)))
def test_proven_rates_are_positive_and_finite(merged: dict[Hotkey, tuple[int, float | None]]) -> None:
    told = {name: (tokens, time_s) for name, (tokens, time_s) in merged.items() if time_s is None or time_s > 1e-3}
    found = proven_rates({name: (tokens, time_s or 0.0) for name, (tokens, time_s) in told.items()}, {})
    assert all(0 < rate < float("inf") for rate in found.values())
