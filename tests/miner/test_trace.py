"""The trace's root commits to every step, its order and its number."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from miner.trace import TraceStep, trace_root


def steps(count: int) -> list[TraceStep]:
    return [TraceStep(i, i * 8, 8, 5.0 - i / 16, 1.0 + i) for i in range(count)]


@given(st.integers(0, 20), st.integers(0, 20))
def test_traces_of_different_lengths_differ(first: int, second: int) -> None:
    assert (trace_root(steps(first)) == trace_root(steps(second))) == (first == second)


@pytest.mark.parametrize(
    "change", [{"global_step": 9}, {"sample_start": 9}, {"samples": 9}, {"loss": 9.0}, {"grad_norm": 9.0}]
)
def test_every_field_counts(change: dict[str, float]) -> None:
    made = steps(5)
    changed = [*made[:2], replace(made[2], **change), *made[3:]]  # type: ignore[arg-type]
    assert trace_root(changed) != trace_root(made)


def test_the_order_counts() -> None:
    assert trace_root(steps(5)[::-1]) != trace_root(steps(5))
