"""The shared token bucket, on a clock that the test moves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.link import BURST_S, Bucket

BLOCKS = st.lists(st.tuples(st.integers(1, 100_000), st.floats(0, 0.1)), min_size=1, max_size=50)
"""Size of each block and the time since the one before it was asked for."""


@given(BLOCKS, st.floats(1e5, 1e9))
def test_never_more_passes_than_the_rate_allows(blocks: list[tuple[int, float]], rate_bps: float) -> None:
    bucket, now_s, passed_bits, first_s = Bucket(rate_bps), 100.0, 0, 100.0
    for size_bytes, pause_s in blocks:
        now_s += pause_s
        passed_bits += 8 * size_bytes
        done_s = now_s + bucket.take(size_bytes, now_s)
        assert passed_bits <= rate_bps * (done_s - first_s + pause_s + BURST_S) * (1 + 1e-9) + 1e-3
    assert bucket.passed_bytes == passed_bits / 8


@given(BLOCKS, st.floats(1e5, 1e9))
def test_a_busy_link_wastes_nothing(blocks: list[tuple[int, float]], rate_bps: float) -> None:
    """Asked at one moment, everything has passed after size over rate, less the burst, in the order of asking."""
    bucket = Bucket(rate_bps)
    waits = [bucket.take(size_bytes, 100.0) for size_bytes, _ in blocks]
    assert waits == sorted(waits)
    total_s = sum(size_bytes for size_bytes, _ in blocks) * 8 / rate_bps
    assert waits[-1] == pytest.approx(max(0.0, total_s - BURST_S), rel=1e-6, abs=1e-9)


def test_two_that_are_always_busy_get_equal_shares() -> None:
    bucket = Bucket(8e6)
    passed_at_s = [0.0, 0.0]
    for _ in range(100):  # each asks for its next block when its last one has passed
        turn = passed_at_s.index(min(passed_at_s))
        passed_at_s[turn] += bucket.take(10_000, passed_at_s[turn])
    assert abs(passed_at_s[0] - passed_at_s[1]) < 0.03
    assert max(passed_at_s) == pytest.approx(1.0, abs=0.03)


def test_a_new_rate_holds_for_what_comes_after_it() -> None:
    bucket = Bucket(8e3)
    assert bucket.take(1020, 100.0) == pytest.approx(1.0)
    bucket.rate_bps = 8e6
    assert bucket.take(1_000_000, 100.0) == pytest.approx(2.0)
    bucket.rate_bps = None
    assert bucket.take(1 << 40, 100.0) == 0


@pytest.mark.parametrize("rate_bps", [0.0, -1.0, float("nan")])
def test_a_rate_of_nothing_is_refused(rate_bps: float) -> None:
    with pytest.raises(ValueError, match="above 0 bit/s"):
        Bucket(rate_bps)
    bucket = Bucket(1.0)
    with pytest.raises(ValueError, match="above 0 bit/s"):
        bucket.rate_bps = rate_bps
