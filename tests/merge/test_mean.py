"""The weighted mean: exact against rationals, the same for slices, and honest about its divisor."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.codec.params import F32
from common.merge.mean import divisor_of, member_scale
from tests.merge.means import weighted_mean

f32 = st.floats(width=32, allow_nan=False, allow_infinity=False)
positive = st.floats(min_value=2.0**-20, max_value=2.0**20, width=32)


def vec(*values: float) -> F32:
    return np.array(values, dtype=np.float32)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(positive, f32), min_size=1, max_size=6))
def test_follows_the_stated_order_of_operations(members: list[tuple[float, float]]) -> None:
    """Each product exact, each sum and the division rounded once: computed here with rationals."""
    total = 0.0
    for scale, value in members:
        total = float(Fraction(total) + Fraction(scale) * Fraction(value))
    divisor = divisor_of(scale for scale, _ in members)
    expected = np.float32(total / divisor)
    mean = weighted_mean([(scale, vec(value)) for scale, value in members], divisor)
    assert mean.tobytes() == vec(float(expected)).tobytes() or (expected == 0 and mean[0] == 0)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 5), st.integers(0, 150_000))
def test_slices_give_the_bits_of_the_whole(seed: int, members: int, cut: int) -> None:
    rng = np.random.default_rng(seed)
    deltas = rng.standard_normal((members, 150_000)).astype(np.float32)
    scales = [float(s) for s in rng.random(members).astype(np.float32)]
    whole = weighted_mean(zip(scales, deltas, strict=True), 2.5)
    parts = [weighted_mean(zip(scales, deltas[:, part], strict=True), 2.5) for part in (slice(cut), slice(cut, None))]
    assert np.concatenate(parts).tobytes() == whole.tobytes()


def test_a_lone_sender_does_not_have_full_weight() -> None:
    mean = weighted_mean([(1.0, vec(4, 0)), (3.0, vec(0, 4))], divisor_of([1.0, 3.0]))
    assert mean.tolist() == [1.0, 3.0]


def test_a_clipped_member_keeps_its_place_in_the_divisor() -> None:
    scales = [member_scale(2.0, 1.0), member_scale(2.0, 0.5)]
    assert weighted_mean([(scales[0], vec(1)), (scales[1], vec(8))], divisor_of([2.0, 2.0])).tolist() == [2.5]


def test_nothing_but_zeros_is_plus_zero() -> None:
    assert weighted_mean([(1.0, vec(-0.0))], 1.0).tobytes() == bytes(4)


def test_subnormals_are_kept() -> None:
    assert weighted_mean([(1.0, vec(1e-45)), (1.0, vec(1e-45))], 2.0).tolist() == vec(1e-45).tolist()


@pytest.mark.parametrize("divisor", [0.0, -1.0, float("nan"), float("inf")])
def test_a_divisor_must_be_positive(divisor: float) -> None:
    with pytest.raises(ValueError, match="divisor"):
        weighted_mean([(1.0, vec(1))], divisor)


def test_members_must_fit() -> None:
    with pytest.raises(ValueError, match="among float32 vectors"):
        weighted_mean([(1.0, vec(1)), (1.0, vec(1, 2))], 1.0)
    with pytest.raises(ValueError, match="not a finite float32"):
        weighted_mean([(0.1, vec(1))], 1.0)
    with pytest.raises(ValueError, match="1 of 2 values that are not finite"):
        weighted_mean([(1024.0, vec(3e38, 0))], 1.0)
