"""u16 weights: what we compute is what the chain stores."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.chain.weights import U16_MAX, check_vector, to_u16, upscale

SCORES = st.dictionaries(st.integers(0, 255), st.floats(0, 1e12), max_size=64)


def test_the_example_of_the_sdk() -> None:
    assert to_u16({1: 0.7, 2: 0.3}) == {1: 65535, 2: 28086}


def test_nothing_earned_is_no_vector() -> None:
    assert to_u16({}) == {}
    assert to_u16({1: 0.0, 2: 0.0}) == {}


def test_what_rounds_to_zero_is_dropped() -> None:
    assert to_u16({1: 131070.0, 2: 1.0, 3: 1.1}) == {1: 65535, 3: 1}


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf")])
def test_scores_that_are_none(bad: float) -> None:
    with pytest.raises(ValueError, match="score"):
        to_u16({1: 1.0, 2: bad})


@given(SCORES)
def test_the_result_is_stored_unchanged(scores: dict[int, float]) -> None:
    weights = to_u16(scores)
    assert set(weights) <= set(scores)
    if weights:
        check_vector(weights)  # type: ignore[arg-type]  # plain ints as uids
        assert upscale(list(weights.values())) == list(weights.values())
    if any(score > 0 for score in scores.values()):
        assert max(weights.values()) == U16_MAX


@given(SCORES)
def test_more_score_is_never_less_weight(scores: dict[int, float]) -> None:
    weights = to_u16(scores)
    ranked = sorted(scores, key=lambda uid: scores[uid])
    values = [weights.get(uid, 0) for uid in ranked]
    assert values == sorted(values)


@given(st.lists(st.integers(0, U16_MAX), max_size=64))
def test_upscaling_is_stable(values: list[int]) -> None:
    once = upscale(values)
    assert upscale(once) == once
    assert not any(values) or max(once) == U16_MAX
