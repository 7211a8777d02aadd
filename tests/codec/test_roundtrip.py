"""What is sent is what arrives: sizes, selection, values and their error."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.codec.container import (
    HEADER_BYTES,
    decode,
    decode_stream,
    encode,
    encoded_size,
    partition_hashes,
    partition_ranges,
    record_bytes,
)
from common.codec.params import CHUNK, F32, CodecParams
from common.units import sha256_hex
from tests.codec.strategies import ALL_PARAMS, params, vector, vectors

NANO = 850_000


@settings(max_examples=150, deadline=None)
@given(vectors, params)
def test_any_finite_vector_survives(values: F32, codec: CodecParams) -> None:
    data = encode(values, codec)
    assert len(data) == encoded_size(len(values), codec)
    decoded = decode(data, expect=codec, count=len(values))
    assert decoded.dtype == np.float32
    assert np.isfinite(decoded).all()
    assert encode(values, codec) == data


@settings(max_examples=60, deadline=None)
@given(vectors, params, st.integers(1, 40))
def test_partitions_are_whole_records_that_make_up_the_body(values: F32, codec: CodecParams, num: int) -> None:
    data, count = encode(values, codec), len(values)
    ranges = partition_ranges(count, codec, num)
    assert (ranges[0][0], ranges[-1][1]) == (HEADER_BYTES, len(data))
    assert all(a[1] == b[0] for a, b in itertools.pairwise(ranges))
    assert all((start - HEADER_BYTES) % record_bytes(codec) == 0 for start, end in ranges if start < len(data))
    hashes = partition_hashes(data, count, codec, num)
    assert hashes == tuple(sha256_hex(data[start:end]) for start, end in ranges)


@pytest.mark.parametrize("codec", ALL_PARAMS, ids=str)
def test_stream_equals_decode(codec: CodecParams) -> None:
    values = vector(3, 300 * CHUNK + 17, "normal")
    data = encode(values, codec)
    pieces = list(decode_stream(data, expect=codec, count=len(values)))
    assert len(pieces) == 2
    assert (
        np.concatenate([piece for _, piece in pieces]).tobytes()
        == decode(data, expect=codec, count=len(values)).tobytes()
    )


def test_an_empty_vector_is_a_header() -> None:
    for codec in ALL_PARAMS:
        data = encode(np.zeros(0, dtype=np.float32), codec)
        assert len(data) == HEADER_BYTES
        assert len(decode(data, expect=codec, count=0)) == 0


@pytest.mark.parametrize(
    ("density", "bits", "size"), [(64, 8, 82), (64, 16, 84), (512, 16, 452), (1024, 16, 772), (4096, 8, 1026)]
)
def test_record_sizes(density: int, bits: int, size: int) -> None:
    assert record_bytes(CodecParams("topk", density, bits)) == size


@pytest.mark.parametrize(("density", "bits", "times"), [(64, 8, 195), (64, 16, 190), (512, 16, 30), (4096, 16, 15)])
def test_compression_at_nano(density: int, bits: int, times: int) -> None:
    data = encode(vector(0, NANO, "normal"), CodecParams("topk", density, bits))
    assert 4 * NANO / len(data) >= times


@settings(max_examples=80, deadline=None)
@given(vectors, st.sampled_from((1, 64, 512, 1024)))
def test_the_largest_of_each_chunk_are_sent_with_their_signs(values: F32, density: int) -> None:
    codec = CodecParams("topk", density, 16)
    decoded = decode(encode(values, codec), expect=codec, count=len(values))
    for start in range(0, len(values), CHUNK):
        chunk, sent = values[start : start + CHUNK], decoded[start : start + CHUNK]
        order = np.lexsort((np.arange(len(chunk)), -np.abs(chunk)))
        left_out = order[density:]
        assert not sent[left_out].any()
        opposite = (np.sign(sent) != np.sign(chunk)) & (sent != 0) & (chunk != 0)
        assert not opposite.any()


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("density", [64, 512, 4096])
def test_error_is_that_of_the_best_two_levels(density: int, bits: int) -> None:
    """Against brute force over all splits in exact order; the written magnitudes add 3.1 % or 0.4 % at most."""
    values, codec = vector(5, 8 * CHUNK, "normal"), CodecParams("topk", density, bits)
    decoded = decode(encode(values, codec), expect=codec, count=len(values))
    rounding = {8: 2.0**-5, 16: 2.0**-8}[bits]
    for chunk, sent in zip(values.reshape(-1, CHUNK), decoded.reshape(-1, CHUNK), strict=True):
        kept = np.sort(np.abs(chunk[sent != 0]).astype(np.float64))
        best = min(kept[:i].var() * i + kept[i:].var() * (len(kept) - i) for i in range(1, len(kept)))
        error = ((chunk - sent)[sent != 0].astype(np.float64) ** 2).sum()
        assert best * 0.999 <= error <= best + rounding**2 * (kept**2).sum()
        assert len(np.unique(sent[sent != 0])) == 4  # all the levels that two bits have


@pytest.mark.parametrize("bits", [8, 16])
def test_a_chunk_that_needs_one_or_two_levels_is_exact(bits: int) -> None:
    values = np.zeros(3 * CHUNK, dtype=np.float32)
    values[:100] = 0.5
    values[CHUNK : CHUNK + 30], values[CHUNK + 30 : CHUNK + 64] = -0.25, 1.0
    codec = CodecParams("topk", 64, bits)
    decoded = decode(encode(values, codec), expect=codec, count=len(values))
    assert (decoded[:64] == 0.5).all()
    assert not decoded[64:CHUNK].any()
    assert decoded[CHUNK:].tobytes() == values[CHUNK:].tobytes()


def test_a_chunk_too_small_for_the_scale_is_left_to_error_feedback() -> None:
    values = np.full(2 * CHUNK, 1e-9, dtype=np.float32)
    values[0] = 1.0
    codec = CodecParams("topk", 1, 8)
    decoded = decode(encode(values, codec), expect=codec, count=len(values))
    assert decoded[0] == 1.0
    assert not decoded[1:].any()


def test_dense_rounds_to_nearest_even_and_stays_finite() -> None:
    bits = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x7F7FFFFF, 0xFF7FFFFF, 0x00000001], dtype=np.uint32)
    codec = CodecParams("bf16")
    decoded = decode(encode(bits.view(np.float32), codec), expect=codec, count=6).view(np.uint32)
    assert [hex(x) for x in decoded] == ["0x3f800000", "0x3f820000", "0x3f810000", "0x7f7f0000", "0xff7f0000", "0x0"]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("codec", [CodecParams("topk", 64, 8), CodecParams("bf16")])
def test_what_is_not_finite_is_not_encoded(bad: float, codec: CodecParams) -> None:
    values = np.zeros(5000, dtype=np.float32)
    values[4999] = bad
    with pytest.raises(ValueError, match="infinite values or NaN"):
        encode(values, codec)


@pytest.mark.parametrize(
    "wrong",
    [{"density": 0}, {"density": 4097}, {"magnitude_bits": 12}, {"kind": "zip"}, {"kind": "bf16", "density": 64}],
)
def test_contradictory_settings_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"density|magnitude_bits|kind"):
        CodecParams(**wrong)  # type: ignore[arg-type]  # wrong on purpose
