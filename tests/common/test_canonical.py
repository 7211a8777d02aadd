"""Canonical JSON: one byte string a value, and a reader that survives anything."""

from __future__ import annotations

import contextlib
import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.canonical import MAX_INTEGER, dumps, f32_from_hex, f32_hex, loads
from common.errors import Rejected

KEYS = st.text(alphabet=st.characters(max_codepoint=127), max_size=8)
TEXTS = st.text(alphabet=st.characters(blacklist_categories=("Cs",)), max_size=12)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-MAX_INTEGER, MAX_INTEGER) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


@given(VALUES)
def test_round_trip(value):
    assert loads(dumps(value)) == value


@given(VALUES, st.data())
def test_one_flipped_byte_is_another_value_or_refused(value, data):
    good = dumps(value)
    at = data.draw(st.integers(0, len(good) - 1))
    flip = data.draw(st.integers(1, 255))
    bad = good[:at] + bytes([good[at] ^ flip]) + good[at + 1 :]
    with contextlib.suppress(Rejected):
        assert dumps(loads(bad)) == bad


@given(st.binary(max_size=200))
def test_foreign_bytes_never_raise_anything_else(data):
    with contextlib.suppress(Rejected):
        loads(data)


@pytest.mark.parametrize(
    "data",
    [
        b"1.5",
        b"1e3",
        b"NaN",
        b"-0",
        b"9007199254740992",
        b"1" * 5000,
        b'{"a":1,"a":1}',
        b'{"b":1,"a":1}',
        b"[1, 2]",
        b'"\\u0041"',
        b"[" * 100_000,
        b"[" * 40 + b"]" * 40,
        b'"\\ud800"',
        b'{"\xc3\xa9":1}',
        b"",
        b" 1",
    ],
)
def test_what_is_not_canonical_is_refused(data):
    with pytest.raises(Rejected):
        loads(data)


def test_size_is_bounded_before_parsing():
    with pytest.raises(Rejected, match="at most 4"):
        loads(b"[1,2]", max_bytes=4)


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_float32_travels_as_its_bits(value):
    assert struct.pack(">f", f32_from_hex(f32_hex(value))) == struct.pack(">f", value)


@pytest.mark.parametrize("text", ["", "7f800000", "ffc00000", "3F800000", "3f80000", "zz800000"])
def test_floats_that_are_not_finite_or_not_hex_are_refused(text):
    with pytest.raises(Rejected):
        f32_from_hex(text)


def test_floats_have_no_canonical_form():
    with pytest.raises(ValueError, match="float"):
        dumps({"a": math.pi})  # type: ignore[dict-item]
