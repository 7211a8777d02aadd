"""Caps on weights: kept after capping, harmless for small groups."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.merge.shares import capped_weights

amounts = st.lists(st.integers(1, 10**9).map(float), min_size=1, max_size=256)


@given(amounts, st.floats(0.01, 1))
def test_no_miner_has_more_than_its_share(tokens: list[float], share: float) -> None:
    weights = capped_weights(tokens, [str(i) for i in range(len(tokens))], share)
    allowed = max(share, 2 / len(tokens))
    assert max(weights) <= allowed * sum(weights) * (1 + 1e-5)
    assert all(0 < w <= t * (1 + 1e-6) for w, t in zip(weights, tokens, strict=True))
    uncapped = [w for w, t in zip(weights, tokens, strict=True) if w == pytest.approx(t, rel=1e-6)]
    assert len(uncapped) >= len(tokens) / 2
    order = sorted(range(len(tokens)), key=tokens.__getitem__)
    assert [weights[i] for i in order] == sorted(weights)


def test_a_group_is_capped_and_its_members_scaled_alike() -> None:
    weights = capped_weights([30.0, 60.0, 10.0, 10.0, 10.0, 10.0, 10.0], ["x", "x", *"abcde"], 1 / 3)
    assert weights[1] == pytest.approx(2 * weights[0])
    assert weights[0] + weights[1] == pytest.approx(25)
    assert weights[2:] == [10.0] * 5


@pytest.mark.parametrize("tokens", [[7.0], [1.0, 1000.0]])
def test_one_or_two_members_are_not_capped(tokens: list[float]) -> None:
    assert capped_weights(tokens, ["a", "b"][: len(tokens)], 0.1) == tokens


def test_nobody_no_weights() -> None:
    assert capped_weights([], [], 0.5) == []
