"""Damping: its figures are float32, it only ever makes a step smaller, and it acts through one division."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.merge.damping import damped_divisor, damping
from common.merge.mean import divisor_of, exact_f32
from tests.merge.means import weighted_mean

tokens = st.integers(1, 10**13)
shares = st.floats(2.0**-20, 1, width=32)
weights = st.lists(st.floats(2.0**-20, 2.0**40, width=32), min_size=1, max_size=20)


@settings(max_examples=60, deadline=None)
@given(tokens, tokens, shares)
def test_is_a_float32_and_never_enlarges(merged: int, target: int, share: float) -> None:
    found = damping(merged, target, share)
    assert exact_f32(found) == found
    assert 0 < found <= 1
    assert found == pytest.approx(min(1.0, merged / (share * target)) ** 0.5, rel=1e-7)
    assert (found == 1.0) or merged < share * target


@settings(max_examples=60, deadline=None)
@given(tokens, tokens, tokens, shares)
def test_more_tokens_never_make_a_smaller_step(some: int, others: int, target: int, share: float) -> None:
    assert damping(min(some, others), target, share) <= damping(max(some, others), target, share)


def test_a_quarter_of_the_threshold_makes_half_a_step() -> None:
    assert damping(125, 1000, 0.5) == 0.5
    assert damping(500, 1000, 0.5) == damping(10_000, 1000, 0.5) == 1.0


@pytest.mark.parametrize(
    "bad", [(0, 10, 0.5), (-1, 10, 0.5), (float("nan"), 10, 0.5), (5, 0, 0.5), (5, 10, 0.0), (5, 10, 2.0)]
)
def test_what_has_no_damping_is_an_error(bad: tuple[float, int, float]) -> None:
    with pytest.raises(ValueError, match="no damping"):
        damping(*bad)


@settings(max_examples=60, deadline=None)
@given(weights, tokens, tokens, shares)
def test_the_divisor_is_one_rounded_division(members: list[float], merged: int, target: int, share: float) -> None:
    step = damping(merged, target, share)
    total = divisor_of(members)
    assert damped_divisor(members, step) == float(Fraction(total) / Fraction(step))
    assert damped_divisor(members, 1.0) == total


def test_the_mean_becomes_smaller_by_the_damping() -> None:
    values = np.array([2.0, -4.0], dtype=np.float32)
    mean = weighted_mean([(1.0, values), (3.0, values)], damped_divisor([1.0, 3.0], 0.5))
    assert mean.tolist() == [1.0, -2.0]


@pytest.mark.parametrize("bad", [0.0, -0.5, 1.5, 0.1, float("nan"), float("inf")])
def test_a_damping_that_no_plan_holds_is_an_error(bad: float) -> None:
    with pytest.raises(ValueError, match=r"damping|float32"):
        damped_divisor([1.0], bad)
