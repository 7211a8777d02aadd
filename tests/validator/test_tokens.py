"""Which tokens of a claim count."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from validator.round.tokens import LEAST_SAMPLES, Seen, validated_tokens

RATES = (100.0,) * LEAST_SAMPLES


def test_an_honest_claim_counts_whole() -> None:
    assert validated_tokens(1000, Seen(10.0, RATES, True), 1.1)[0] == 1000


def test_a_claim_beyond_time_and_proven_rate_is_cut_to_it() -> None:
    tokens, why = validated_tokens(5000, Seen(10.0, RATES, True), 1.1)
    assert tokens == 1100
    assert "1100 of 5000" in why


def test_without_proof_the_claim_counts() -> None:
    assert validated_tokens(5000, None, 1.1)[0] == 5000
    assert validated_tokens(5000, Seen(10.0, RATES[1:], True), 1.1)[0] == 5000
    assert validated_tokens(5000, Seen(1.0, RATES, False), 1.1)[0] == 5000


def test_a_machine_that_has_sped_up_is_not_cut_to_its_slow_past() -> None:
    seen = Seen(10.0, (*([50.0] * 6), *([100.0] * 4)), True)
    assert validated_tokens(1000, seen, 1.1)[0] == 1000


@given(
    st.integers(0, 10**9),
    st.floats(0, 1e6),
    st.lists(st.floats(0, 1e9), max_size=20).map(tuple),
    st.booleans(),
)
def test_never_more_than_claimed_and_never_negative(
    claimed: int, seconds: float, rates: tuple[float, ...], whole: bool
) -> None:
    tokens, why = validated_tokens(claimed, Seen(seconds, rates, whole), 1.1)
    assert 0 <= tokens <= claimed
    assert why
