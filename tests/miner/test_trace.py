"""The trace's root commits to every step, its order and its number; its ranges name each sample once and in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.records import MAX_SAMPLE_RANGES, SampleRange
from common.units import Revision, RoundId
from miner.trace import TraceStep, claimed, sample_ranges, trace_root


def step(index: int, round_id: int = 0, base: int = 0, first: int | None = None) -> TraceStep:
    start = index * 8 if first is None else first
    return TraceStep(RoundId(round_id), Revision(base), index, start, 8, 5.0 - index / 16, 1.0 + index)


def steps(count: int) -> list[TraceStep]:
    return [step(i) for i in range(count)]


@given(st.integers(0, 20), st.integers(0, 20))
def test_traces_of_different_lengths_differ(first: int, second: int) -> None:
    assert (trace_root(steps(first)) == trace_root(steps(second))) == (first == second)


@pytest.mark.parametrize(
    "change",
    [
        {"round": 9},
        {"base_revision": 9},
        {"global_step": 9},
        {"sample_start": 9},
        {"samples": 9},
        {"loss": 9.0},
        {"grad_norm": 9.0},
    ],
)
def test_every_field_counts(change: dict[str, float]) -> None:
    made = steps(5)
    changed = [*made[:2], replace(made[2], **change), *made[3:]]  # type: ignore[arg-type]
    assert trace_root(changed) != trace_root(made)


def test_the_order_counts() -> None:
    assert trace_root(steps(5)[::-1]) != trace_root(steps(5))


def test_neighbours_of_one_stream_are_one_range_and_a_step_left_out_begins_another() -> None:
    trace = [step(0), step(1), step(3), step(0, round_id=1), step(1, round_id=1), step(0, round_id=2, base=1)]
    assert sample_ranges(trace) == (
        SampleRange(RoundId(0), Revision(0), 0, 16),
        SampleRange(RoundId(0), Revision(0), 24, 8),
        SampleRange(RoundId(1), Revision(0), 0, 16),
        SampleRange(RoundId(2), Revision(1), 0, 8),
    )


def named(trace: Sequence[TraceStep]) -> list[tuple[int, int, int]]:
    ranges = sample_ranges(trace)
    return [(part.round, part.base_revision, s) for part in ranges for s in range(part.start, part.start + part.count)]


@given(st.lists(st.sampled_from(["step", "left out", "round", "revision"]), max_size=300))
def test_ranges_name_each_sample_once_in_the_order_of_training(history: list[str]) -> None:
    trace: list[TraceStep] = []
    round_id = base = sample = 0
    for what in history:
        if what == "step":
            trace.append(step(len(trace), round_id, base, sample))
        if what in ("step", "left out"):
            sample += 8
        else:
            round_id, base, sample = round_id + 1, base + (what == "revision"), 0
    every = [(s.round, s.base_revision, s.sample_start + i) for s in trace for i in range(8)]
    assert named(trace) == every
    kept = claimed(trace, Revision(base))
    assert len(sample_ranges(kept)) <= MAX_SAMPLE_RANGES
    assert named(kept) == every[len(every) - len(named(kept)) :], "the newest"
    assert all(s.base_revision > base - MAX_SAMPLE_RANGES for s in kept)
    if len(sample_ranges(trace)) <= MAX_SAMPLE_RANGES and base < MAX_SAMPLE_RANGES:
        assert kept == tuple(trace)
