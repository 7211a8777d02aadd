"""Availability traces: what they mean, and that no bytes break the reader."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import OperatorError
from validator.simulator.traces import Trace, parse_trace, read_trace


def trace_of(*counts: int, gap_s: float = 10.0) -> Trace:
    return parse_trace(json.dumps({"metadata": {"gap_seconds": gap_s}, "data": list(counts)}).encode())


def changes(trace: Trace, index: int, miners: int, count: int) -> list[tuple[float, bool]]:
    return list(islice(trace.machine(index, miners).changes(), count))


def test_a_trace_of_one_machine_is_rotated_from_miner_to_miner() -> None:
    trace = trace_of(1, 1, 0, 0)
    assert changes(trace, 0, 4, 3) == [(0.0, True), (20.0, False), (40.0, True)]
    assert changes(trace, 1, 4, 3) == [(0.0, True), (10.0, False), (30.0, True)]
    assert changes(trace, 2, 4, 3) == [(0.0, False), (20.0, True), (40.0, False)]


def test_of_a_larger_trace_the_first_machines_are_up_in_proportion() -> None:
    trace = trace_of(4, 2, 1)
    assert changes(trace, 0, 8, 5) == [(0.0, True)]
    assert changes(trace, 3, 8, 3) == [(0.0, True), (20.0, False), (30.0, True)]
    assert changes(trace, 7, 8, 3) == [(0.0, True), (10.0, False), (30.0, True)]


def test_a_trace_that_never_changes_has_no_further_changes() -> None:
    assert changes(trace_of(0, 0), 0, 1, 9) == [(0.0, False)]
    assert changes(trace_of(1), 0, 1, 9) == [(0.0, True)]


@given(st.lists(st.integers(0, 3), min_size=1, max_size=12), st.integers(1, 5), st.data())
def test_changes_tell_the_state_of_every_tick(counts: list[int], miners: int, data: st.DataObject) -> None:
    trace, index = trace_of(*counts), data.draw(st.integers(0, miners - 1))
    ticks = np.roll(counts, -(index * len(counts) // miners)) if max(counts) <= 1 else np.array(counts)
    wanted = ticks > 0 if max(counts) <= 1 else ticks * miners // max(counts) > index
    told = changes(trace, index, miners, 30)
    for tick in range(2 * len(counts)):
        up = [state for at_s, state in told if at_s <= tick * 10.0][-1]
        assert up == bool(wanted[tick % len(counts)]) or told[-1][0] < tick * 10.0


BAD = [
    b"",
    b"[1",
    b"[]",
    b'{"data": [1]}',
    b'{"metadata": {}, "data": [1]}',
    b'{"metadata": {"gap_seconds": 0}, "data": [1]}',
    b'{"metadata": {"gap_seconds": true}, "data": [1]}',
    b'{"metadata": {"gap_seconds": 1e999}, "data": [1]}',
    b'{"metadata": {"gap_seconds": NaN}, "data": [1]}',
    b'{"metadata": {"gap_seconds": 5}, "data": []}',
    b'{"metadata": {"gap_seconds": 5}, "data": [-1]}',
    b'{"metadata": {"gap_seconds": 5}, "data": [1.5]}',
    b'{"metadata": {"gap_seconds": 5}, "data": [true]}',
    b'{"metadata": {"gap_seconds": 5}, "data": "1"}',
    b"[" * 100_000,
    b"\xff\xfe",
]


@pytest.mark.parametrize("data", BAD)
def test_a_bad_trace_is_told_in_one_line(data: bytes) -> None:
    with pytest.raises(OperatorError) as told:
        parse_trace(data)
    assert "\n" not in str(told.value)


@given(st.binary(max_size=200))
def test_the_reader_is_total(data: bytes) -> None:
    try:
        parse_trace(data)
    except OperatorError:
        return


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["metadata", "data", "x"]), inner),
        max_leaves=8,
    )
)
def test_the_reader_is_total_on_any_json(value: object) -> None:
    try:
        parse_trace(json.dumps(value).encode())
    except OperatorError:
        return


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match=r"nowhere\.json"):
        read_trace(tmp_path / "nowhere.json")
