"""Which tokens of a claim count: nothing that a miner says lets it count for more than time and proof allow."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.units import Hotkey
from validator.round.tokens import (
    FIRST_SHARE,
    FIRST_USUAL,
    GROWTH,
    MOST_USUAL,
    Seen,
    Terms,
    most_tokens,
    proven_rates,
    usual_rate,
    validated_tokens,
)

HUGE = 2**53 - 1
TERMS = Terms(target_tokens=10_000, members=4, longest_s=60.0, slack=1.1, usual_rate=100.0)
NOTHING_PROVEN = replace(TERMS, usual_rate=None)
WATCHED = Seen(10.0, True)

seconds = st.one_of(st.none(), st.floats(0, 1e6))
seen = st.builds(Seen, seconds, st.booleans())
rates = st.one_of(st.none(), st.floats(1e-3, 1e9))
terms = st.builds(Terms, st.integers(1, 10**12), st.integers(0, 256), st.floats(1, 1e5), st.floats(1, 2), rates)


def test_an_honest_claim_counts_whole() -> None:
    assert validated_tokens(1000, WATCHED, 100.0, TERMS)[0] == 1000
    assert validated_tokens(1500, WATCHED, 100.0, TERMS)[0] == 1500, "its neighbours left: it is faster this round"


def test_a_claim_beyond_time_and_proven_rate_is_cut_to_it() -> None:
    tokens, why = validated_tokens(5000, WATCHED, 100.0, TERMS)
    assert tokens == int(10.0 * 100.0 * GROWTH * 1.1)
    assert f"{tokens} of 5000" in why


def test_nothing_proven_is_no_reason_to_believe() -> None:
    first = int(FIRST_SHARE * 10_000 / 4)
    assert validated_tokens(HUGE, WATCHED, None, NOTHING_PROVEN)[0] == first
    assert validated_tokens(HUGE, Seen(None, False), None, NOTHING_PROVEN)[0] == first
    assert validated_tokens(HUGE, WATCHED, None, TERMS)[0] == 1100, "the usual rate, when others are proven"
    alone = replace(NOTHING_PROVEN, members=1)
    assert validated_tokens(HUGE, WATCHED, None, alone)[0] == 11_000, "at most the target"


def test_one_that_nobody_watched_is_bounded_by_the_rounds_longest_time() -> None:
    assert validated_tokens(HUGE, Seen(None, False), 50.0, TERMS)[0] == int(60.0 * 50.0 * GROWTH * 1.1)


def test_a_machine_four_times_as_fast_counts_whole_from_the_first_proof_on() -> None:
    names = [Hotkey(name) for name in "abcd"]
    speeds = dict(zip(names, (100.0, 100.0, 100.0, 400.0), strict=True))
    proven: dict[Hotkey, float] = {}
    for round_id in range(4):
        now = replace(TERMS, target_tokens=7000, usual_rate=usual_rate(proven.values()))
        counted = {
            name: validated_tokens(int(10 * speed), WATCHED, proven.get(name), now)[0] for name, speed in speeds.items()
        }
        if round_id > 1:
            assert counted == {name: 10 * speed for name, speed in speeds.items()}
        proven = {**proven, **proven_rates({name: (tokens, 10.0) for name, tokens in counted.items()}, proven)}


@pytest.mark.parametrize("time_s", [0.001, 1.0, 10.0])
def test_a_liar_gains_little_a_round_and_never_more_than_a_few_usual_ones(time_s: float) -> None:
    honest, liar = [Hotkey(name) for name in "abc"], Hotkey("liar")
    proven: dict[Hotkey, float] = {}
    before = None
    for _ in range(12):
        now = replace(TERMS, target_tokens=10**9, usual_rate=usual_rate(proven.values()))
        told = validated_tokens(HUGE, Seen(time_s, True), proven.get(liar), now)[0]
        if proven:
            assert told <= MOST_USUAL * 100.0 * time_s * 1.1 + 1
        if before is not None:
            assert told <= before * GROWTH * 1.1 + 1
        before = told if proven else None
        merged = {name: (1000, 10.0) for name in honest} | {liar: (told, time_s)}
        proven = {**proven, **proven_rates(merged, proven)}


def test_a_first_proof_is_bounded_by_the_rounds_usual_one() -> None:
    merged = {Hotkey("a"): (1000, 10.0), Hotkey("b"): (1000, 10.0), Hotkey("c"): (10**9, 0.1)}
    assert proven_rates(merged, {})[Hotkey("c")] == FIRST_USUAL * 100.0


def test_one_slow_round_takes_little_of_what_was_proven() -> None:
    assert proven_rates({Hotkey("a"): (10, 10.0)}, {Hotkey("a"): 100.0}) == {Hotkey("a"): 90.0}


@given(st.integers(0, HUGE), seen, rates, terms)
def test_never_more_than_claimed_nor_than_the_target_and_never_negative(
    claimed: int, watched: Seen, rate: float | None, at: Terms
) -> None:
    tokens, why = validated_tokens(claimed, watched, rate, at)
    assert 0 <= tokens <= min(claimed, int(at.target_tokens * at.slack))
    assert why


@given(st.floats(0, 1e5), st.floats(1e-3, 1e6), st.floats(1e-3, 1e6))
def test_what_can_count_is_bounded_by_growth_and_by_the_usual(time_s: float, rate: float, usual: float) -> None:
    at = replace(TERMS, target_tokens=10**15, usual_rate=usual)
    most, _ = most_tokens(Seen(time_s, True), rate, at)
    assert most <= time_s * min(rate * GROWTH, MOST_USUAL * usual) * at.slack + 1e-6 * most + 1


@given(st.dictionaries(st.sampled_from([Hotkey(c) for c in "abcdef"]), st.tuples(st.integers(0, HUGE), seconds)))
def test_proven_rates_are_positive_and_finite(merged: dict[Hotkey, tuple[int, float | None]]) -> None:
    told = {name: (tokens, time_s) for name, (tokens, time_s) in merged.items() if time_s is None or time_s > 1e-3}
    found = proven_rates({name: (tokens, time_s or 0.0) for name, (tokens, time_s) in told.items()}, {})
    assert all(0 < rate < float("inf") for rate in found.values())
