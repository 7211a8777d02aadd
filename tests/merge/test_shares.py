"""Caps on weights: kept after capping, all together, and harmless for small groups."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.merge.shares import Share, cap_level, capped_weights

amounts = st.lists(st.integers(1, 10**9).map(float), min_size=1, max_size=64)
claims = st.builds(Share, st.integers(1, 10**9).map(float), st.sampled_from("abcdefgh"), st.booleans())
SLACK = 1 + 1e-5


def alone(tokens: list[float]) -> list[Share]:
    return [Share(amount, str(i)) for i, amount in enumerate(tokens)]


@settings(max_examples=60, deadline=None)
@given(amounts, st.floats(0.01, 1))
def test_no_miner_has_more_than_its_share(tokens: list[float], share: float) -> None:
    weights = capped_weights(alone(tokens), share, 1.0)
    allowed = max(share, 2 / len(tokens))
    assert max(weights) <= allowed * sum(weights) * SLACK
    assert all(0 < w <= t * (1 + 1e-6) for w, t in zip(weights, tokens, strict=True))
    uncapped = [w for w, t in zip(weights, tokens, strict=True) if w == pytest.approx(t, rel=1e-6)]
    assert len(uncapped) >= len(tokens) / 2
    order = sorted(range(len(tokens)), key=tokens.__getitem__)
    assert [weights[i] for i in order] == sorted(weights)
    level = cap_level(tokens, share)
    assert weights == pytest.approx([min(amount, level) for amount in tokens], rel=1e-5)


@settings(max_examples=150, deadline=None)
@given(st.lists(claims, min_size=1, max_size=24), st.floats(0.01, 1), st.floats(0.01, 1))
def test_all_caps_hold_together(members: list[Share], share: float, newcomers: float) -> None:
    weights = capped_weights(members, share, newcomers)
    total = sum(weights)
    assert all(0 < w <= m.tokens * (1 + 1e-6) for w, m in zip(weights, members, strict=True))
    old = {m.group for m in members if not m.newcomer} or {m.group for m in members}
    sums = {m.group: sum(w for w, n in zip(weights, members, strict=True) if n.group == m.group) for m in members}
    if len(sums) > 1:
        assert max(sums.values()) <= max(share, 2 / len(old)) * total * SLACK
    new = sum(w for w, m in zip(weights, members, strict=True) if m.newcomer)
    if any(not m.newcomer for m in members):
        assert new <= newcomers * total * SLACK


@settings(max_examples=60, deadline=None)
@given(st.lists(claims, min_size=1, max_size=24), st.floats(0.01, 1), st.floats(0.01, 1))
def test_a_veteran_loses_weight_only_to_its_coldkeys_cap(members: list[Share], share: float, newcomers: float) -> None:
    weights = capped_weights(members, share, newcomers)
    old = [m for m in members if not m.newcomer] or list(members)
    groups = {m.group for m in members}
    key = [m.group if len(groups) > 1 else str(i) for i, m in enumerate(members)]
    allowed = max(share, 2 / len({k for k, m in zip(key, members, strict=True) if m in old}))
    for own, weight, member in zip(key, weights, members, strict=True):
        theirs = sum(w for w, k in zip(weights, key, strict=True) if k == own)
        kept = weight == pytest.approx(member.tokens, rel=1e-6)
        assert kept or member not in old or theirs >= allowed * sum(weights) / SLACK


def test_all_newcomers_have_no_cap_in_common() -> None:
    assert capped_weights([Share(5.0, g, True) for g in "abcde"], 0.5, 0.1) == [5.0] * 5


def test_newcomers_cannot_drown_a_lone_veteran() -> None:
    crowd = [Share(1e6, f"new{i}", True) for i in range(99)]
    weights = capped_weights([Share(9.0, "old"), *crowd], 0.1, 0.1)
    assert weights[0] == 9.0
    assert sum(weights[1:]) == pytest.approx(1.0)


def test_newcomers_below_their_share_count_in_full() -> None:
    assert capped_weights([Share(9.0, "a"), Share(9.0, "b"), Share(1.0, "c", True)], 0.6, 0.1) == [9.0, 9.0, 1.0]


def test_a_group_is_capped_and_its_members_scaled_alike() -> None:
    members = [Share(30.0, "x"), Share(60.0, "x"), *(Share(10.0, g) for g in "abcde")]
    weights = capped_weights(members, 1 / 3, 1.0)
    assert weights[1] == pytest.approx(2 * weights[0])
    assert weights[0] + weights[1] == pytest.approx(25)
    assert weights[2:] == [10.0] * 5


def test_miners_of_one_coldkey_alone_stand_for_themselves() -> None:
    weights = capped_weights([Share(100.0, "x"), *[Share(10.0, "x")] * 5], 0.5, 1.0)
    assert weights == pytest.approx([50.0, *[10.0] * 5])


@pytest.mark.parametrize("tokens", [[7.0], [1.0, 1000.0]])
def test_one_or_two_members_are_not_capped(tokens: list[float]) -> None:
    assert capped_weights(alone(tokens), 0.1, 0.1) == tokens


def test_nobody_no_weights() -> None:
    assert capped_weights([], 0.5, 0.5) == []
