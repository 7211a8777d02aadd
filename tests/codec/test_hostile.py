"""Bytes from strangers: every one is either a finite vector or a typed rejection, and content has one encoding."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.codec.container import HEADER_BYTES, decode, encode, encoded_size
from common.codec.params import CHUNK, F32, CodecParams
from common.errors import Rejected
from tests.codec.strategies import SPARSE, params, vector, vectors

CODES = (
    "bad_magic", "bad_header", "wrong_size", "wrong_schema", "bad_indices", "bad_magnitude", "non_finite",
    "non_canonical",
)  # fmt: skip


def outcome(data: bytes, codec: CodecParams, count: int) -> F32 | str:
    """The decoded values or the code of the rejection; anything else fails the test."""
    try:
        values = decode(data, expect=codec, count=count)
    except Rejected as refusal:
        return CODES[CODES.index(refusal.code)]
    assert np.isfinite(values).all()
    assert len(values) == count
    return values


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=3000), params, st.integers(0, 9000))
def test_random_bytes(data: bytes, codec: CodecParams, count: int) -> None:
    outcome(data, codec, count)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32 - 1), params, st.sampled_from((1, 700, 4096, 4097, 9000)), st.booleans())
def test_random_body_behind_a_good_header(seed: int, codec: CodecParams, count: int, low_levels: bool) -> None:
    rng = np.random.default_rng(seed)
    header = encode(vector(0, count, "normal"), codec)[:HEADER_BYTES]
    body = rng.integers(0, 4 if low_levels else 256, encoded_size(count, codec) - HEADER_BYTES, dtype=np.uint8)
    outcome(header + body.tobytes(), codec, count)


@settings(max_examples=300, deadline=None)
@given(vectors.filter(lambda v: len(v) < 10_000), params, st.data())
def test_a_flipped_bit_is_refused_or_decodes_to_something_else(
    values: F32, codec: CodecParams, draw: st.DataObject
) -> None:
    data = encode(values, codec)
    honest = decode(data, expect=codec, count=len(values))
    position = draw.draw(st.integers(0, len(data) * 8 - 1))
    flipped = bytearray(data)
    flipped[position // 8] ^= 1 << (position % 8)
    result = outcome(bytes(flipped), codec, len(values))
    assert isinstance(result, str) or result.tobytes() != honest.tobytes()


@pytest.mark.parametrize("codec", SPARSE, ids=str)
@pytest.mark.parametrize("shape", ["bits", "zeros"])
def test_no_bit_of_a_vector_shorter_than_a_record_is_meaningless(codec: CodecParams, shape: str) -> None:
    """What is named past the vector's end decodes to nothing, and still has one form."""
    values = vector(0, 2, shape)
    data = encode(values, codec)
    honest = decode(data, expect=codec, count=len(values))
    for position in range(8 * len(data) if len(data) < 600 else 4096):
        flipped = bytearray(data)
        flipped[position // 8] ^= 1 << (position % 8)
        result = outcome(bytes(flipped), codec, len(values))
        assert isinstance(result, str) or result.tobytes() != honest.tobytes(), position


@settings(max_examples=100, deadline=None)
@given(vectors.filter(lambda v: len(v) < 10_000), params, st.data())
def test_cut_or_lengthened(values: F32, codec: CodecParams, draw: st.DataObject) -> None:
    data = encode(values, codec)
    cut = draw.draw(st.integers(0, len(data) - 1))
    assert outcome(data[:cut], codec, len(values)) == "wrong_size"
    assert outcome(data + b"\0", codec, len(values)) == "wrong_size"


@settings(max_examples=100, deadline=None)
@given(vectors, params, params)
def test_another_codec_or_count_is_refused(values: F32, codec: CodecParams, other: CodecParams) -> None:
    data = encode(values, codec)
    if other != codec:
        assert outcome(data, other, len(values)) in ("wrong_size", "wrong_schema")
    assert outcome(data, codec, len(values) + 1) in ("wrong_size", "wrong_schema")


def edited(codec: CodecParams, values: F32, offset: int, patch: bytes) -> str | F32:
    data = bytearray(encode(values, codec))
    data[offset : offset + len(patch)] = patch
    return outcome(bytes(data), codec, len(values))


SPARSE16, SPARSE8, BITMAP = CodecParams("topk", 64, 16), CodecParams("topk", 64, 8), CodecParams("topk", 1024, 16)
VALUES = vector(1, 2 * CHUNK, "normal")
BODY = HEADER_BYTES


@pytest.mark.parametrize(
    ("offset", "patch", "code"),
    [
        (0, b"PICK", "bad_magic"),
        (4, struct.pack("<H", 2), "wrong_schema"),
        (6, b"\x02", "wrong_schema"),
        (7, b"\x08", "wrong_schema"),
        (8, struct.pack("<Q", 2**63), "wrong_schema"),
        (20, struct.pack("<I", 65), "wrong_schema"),
        (24, struct.pack("<h", 1), "bad_header"),
        (31, b"\x01", "bad_header"),
        (BODY, struct.pack("<HH", 0x3F80, 0x3F00), "bad_magnitude"),
        (BODY, struct.pack("<HH", 0x8000, 0x8001), "bad_magnitude"),
        (BODY, struct.pack("<HH", 0x3F80, 0x7F80), "non_finite"),
        (BODY, struct.pack("<HH", 0x3F80, 0x7FC1), "non_finite"),
        (BODY, struct.pack("<HH", 0x3F80, 0x3F80), "non_canonical"),
        (BODY, struct.pack("<HH", 0, 0), "non_canonical"),
        (BODY + 4, b"\xff" * 64, "bad_indices"),
        (BODY + 4, b"\0" * 64, "bad_indices"),
        (BODY + 4, b"\0" * 48 + b"\xff" * 8 + b"\0" * 8, "bad_indices"),
        (BODY + 4 + 48, b"\0" * 8 + b"\xff" * 8, "bad_indices"),
        (BODY + 4 + 64 + 8, b"\0" * 8, "non_canonical"),
        (BODY + 4 + 64 + 8, b"\xff" * 8, "non_canonical"),
    ],
)
def test_each_lie_has_its_code(offset: int, patch: bytes, code: str) -> None:
    assert edited(SPARSE16, VALUES, offset, patch) == code


def test_scale_must_be_the_tightest() -> None:
    data = bytearray(encode(VALUES, SPARSE8))
    (scale,) = struct.unpack_from("<h", data, 24)
    records = np.frombuffer(data, dtype=np.uint8, offset=HEADER_BYTES).reshape(2, -1)
    assert (records[:, :2] >= 16).all()
    records[:, :2] -= 16  # the same values, one octave lower on a scale one higher
    struct.pack_into("<h", data, 24, scale + 1)
    assert outcome(bytes(data), SPARSE8, len(VALUES)) == "non_canonical"
    for wild in (-101, 128):
        struct.pack_into("<h", data, 24, wild)
        assert outcome(bytes(data), SPARSE8, len(VALUES)) == "bad_header"


def test_zeros_and_the_positions_behind_the_end_cannot_hide_bytes() -> None:
    zero = np.zeros(100, dtype=np.float32)
    record = encode(zero, SPARSE16)[BODY:]
    signs = BODY + 4 + 64
    assert edited(SPARSE16, zero, signs, b"\x01") == "non_canonical"
    few = encode(np.zeros(10, dtype=np.float32), BITMAP)
    assert record[:4] == few[BODY : BODY + 4] == bytes(4)
    moved = encode(np.concatenate([np.zeros(1), np.ones(64)]).astype(np.float32), SPARSE16)
    low_plane = moved[BODY + 4 : BODY + 12]
    assert edited(SPARSE16, zero, BODY + 4, low_plane) in ("bad_indices", "non_canonical")
    behind = np.zeros(4096, dtype=np.float32)
    behind[66:130] = 1
    assert edited(SPARSE16, np.ones(65, dtype=np.float32), BODY, encode(behind, SPARSE16)[BODY:]) == "bad_indices"
