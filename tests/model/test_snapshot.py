"""Snapshots: round trip, one encoding, readable by anyone, and a reader that strangers can't surprise."""

from __future__ import annotations

import contextlib
import dataclasses

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import Rejected
from common.model.init import init_vector
from common.model.layout import Vector, layout_of
from common.model.presets import PRESETS
from common.model.shards import plan_shards
from common.model.snapshot import (
    Snapshot,
    decode_snapshot,
    decode_weights,
    encode_snapshot,
    snapshot_parts,
    snapshot_size_bytes,
    weights_start_bytes,
)

SPEC = dataclasses.replace(PRESETS["nano"], hidden_size=16, ffn_size=8, vocab_size=8, num_layers=2)
SHARDS = plan_shards(SPEC, 2)
FIRST = SHARDS[0]
TOTAL = layout_of(SPEC, FIRST).total


def outer(seed: int) -> Vector:
    return np.random.default_rng(seed).standard_normal(TOTAL).astype(np.float32)


WEIGHTS = init_vector(SPEC, FIRST)
FULL = Snapshot(WEIGHTS, outer(1), outer(2))
FULL_BYTES = encode_snapshot(SPEC, FIRST, FULL)


@pytest.mark.parametrize("momentum", [None, outer(1)])
@pytest.mark.parametrize("residual", [None, outer(2)])
def test_round_trip(momentum: Vector | None, residual: Vector | None) -> None:
    data = encode_snapshot(SPEC, FIRST, Snapshot(WEIGHTS, momentum, residual))
    back = decode_snapshot(SPEC, FIRST, data)
    assert np.array_equal(back.weights, WEIGHTS)
    for got, sent in ((back.momentum, momentum), (back.residual, residual)):
        assert (got is None) == (sent is None)
        assert got is None or np.array_equal(got, sent)
    assert encode_snapshot(SPEC, FIRST, back) == data
    assert len(data) <= snapshot_size_bytes(SPEC, FIRST)


def test_the_safetensors_library_reads_it() -> None:
    tensors = safetensors.numpy.load(FULL_BYTES)
    for name, tensor in layout_of(SPEC, FIRST).views(WEIGHTS):
        assert np.array_equal(tensors.pop(name), tensor)
    assert np.array_equal(tensors.pop("outer.momentum"), outer(1))
    assert np.array_equal(tensors.pop("outer.residual"), outer(2))
    assert tensors == {}


def test_parts_copy_no_vector() -> None:
    parts = list(snapshot_parts(SPEC, FIRST, FULL))
    assert b"".join(parts) == FULL_BYTES
    assert np.shares_memory(np.frombuffer(parts[1], np.uint8), WEIGHTS)


def test_the_reader_copies_nothing() -> None:
    buffer = bytearray(FULL_BYTES)
    back = decode_snapshot(SPEC, FIRST, memoryview(buffer))
    assert np.shares_memory(back.weights, np.frombuffer(buffer, np.uint8))
    assert not back.weights.flags.writeable


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("which", ["weights", "momentum", "residual"])
def test_values_that_are_not_finite_are_refused(value: float, which: str) -> None:
    broken = getattr(FULL, which).copy()
    broken[-1] = value
    refuse(encode_snapshot(SPEC, FIRST, dataclasses.replace(FULL, **{which: broken})), "not finite")


def test_another_shards_snapshot_is_refused() -> None:
    other = encode_snapshot(SPEC, SHARDS[1], Snapshot(init_vector(SPEC, SHARDS[1])))
    refuse(other, "tensors of shard 0")


def test_a_longer_or_shorter_file_is_refused() -> None:
    refuse(FULL_BYTES + b"\0", "header promises")
    refuse(FULL_BYTES[:-1], "header promises")


def test_a_vector_of_another_length_is_not_written() -> None:
    with pytest.raises(ValueError, match="contiguous float32"):
        encode_snapshot(SPEC, FIRST, Snapshot(WEIGHTS, WEIGHTS[:-1]))


@given(st.binary(max_size=4096))
def test_any_bytes_are_refused_with_the_typed_error(data: bytes) -> None:
    refuse(data)


@given(st.binary(max_size=64), st.integers(0, 2**64 - 1))
def test_a_header_of_any_length_is_refused(rest: bytes, length: int) -> None:
    refuse(length.to_bytes(8, "little") + rest)


@settings(max_examples=300)
@given(st.integers(0, len(FULL_BYTES) - 1), st.integers(1, 255))
def test_a_changed_byte_is_refused_or_changes_a_value(at: int, flip: int) -> None:
    data = bytearray(FULL_BYTES)
    data[at] ^= flip
    if at < len(FULL_BYTES) - 3 * 4 * TOTAL:
        refuse(bytes(data))
    else:
        with contextlib.suppress(Rejected):  # the value may have become infinite or NaN
            assert encode_snapshot(SPEC, FIRST, decode_snapshot(SPEC, FIRST, bytes(data))) == bytes(data)


@given(st.integers(0, len(FULL_BYTES)))
def test_a_cut_file_is_refused(size: int) -> None:
    if size < len(FULL_BYTES):
        refuse(FULL_BYTES[:size])


def test_the_weights_can_be_had_from_the_start_of_the_file() -> None:
    data = encode_snapshot(SPEC, FIRST, Snapshot(WEIGHTS, None, outer(2)))
    start_bytes = weights_start_bytes(SPEC, FIRST)
    assert np.array_equal(decode_weights(SPEC, FIRST, data[:start_bytes]), WEIGHTS)
    for wrong in (data[: start_bytes - 1], data[: start_bytes + 1], FULL_BYTES[:start_bytes], b""):
        with pytest.raises(Rejected) as caught:
            decode_weights(SPEC, FIRST, wrong)
        assert caught.value.code == "bad_snapshot"


@given(st.binary(max_size=300))
def test_any_start_is_refused_with_the_typed_error(start: bytes) -> None:
    with pytest.raises(Rejected) as caught:
        decode_weights(SPEC, FIRST, start)
    assert caught.value.code == "bad_snapshot"


def refuse(data: bytes, text: str = ".") -> None:
    with pytest.raises(Rejected, match=text) as caught:
        decode_snapshot(SPEC, FIRST, data)
    assert caught.value.code == "bad_snapshot"
