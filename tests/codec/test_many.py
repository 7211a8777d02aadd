"""Vectors coded together are the ones coded apart, bit for bit, and one bad body spoils no other."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.codec.container import decode, encode
from common.codec.many import decode_many, encode_many
from common.codec.params import CHUNK, F32, CodecParams
from common.errors import Rejected
from tests.codec.strategies import ALL_PARAMS, params, shapes, vector

counts = st.sampled_from((0, 1, 63, 65, 4095, 4096, 4097, 9000))
kinds = st.lists(st.tuples(st.integers(0, 2**32 - 1), shapes), min_size=0, max_size=7)


def matrix(rows: list[tuple[int, str]], count: int) -> F32:
    return np.array([vector(seed, count, shape) for seed, shape in rows], dtype=np.float32).reshape(len(rows), count)


@settings(max_examples=150, deadline=None)
@given(kinds, counts, params)
def test_bytes_and_values_are_those_of_single_vectors(
    rows: list[tuple[int, str]], count: int, codec: CodecParams
) -> None:
    values = matrix(rows, count)
    bodies = encode_many(values, codec)
    assert bodies == [encode(row, codec) for row in values]
    decoded = decode_many(bodies, expect=codec, count=count)
    assert not decoded.refused
    assert decoded.values.shape == values.shape
    assert [told(row, None) for row in decoded.values] == [alone(body, codec, count) for body in bodies]


def told(values: F32, refusal: Rejected | None) -> tuple[bytes, str]:
    return values.tobytes(), f"{refusal.code}: {refusal.message}" if refusal else ""


def alone(body: bytes, codec: CodecParams, count: int) -> tuple[bytes, str]:
    try:
        return told(decode(body, expect=codec, count=count), None)
    except Rejected as refusal:
        return told(np.zeros(count, dtype=np.float32), refusal)


@pytest.mark.parametrize("codec", ALL_PARAMS, ids=str)
@pytest.mark.parametrize(("members", "count"), [(130, CHUNK), (3, 70 * CHUNK + 5), (70, 3 * CHUNK - 1)])
def test_more_than_one_block(codec: CodecParams, members: int, count: int) -> None:
    sizes = (np.float32(10) ** (np.arange(members) % 30))[:, None]
    values = (vector(1, members * count, "normal").reshape(members, count) * sizes).astype(np.float32)
    some = [0, 1, members // 2, members - 1]
    bodies = encode_many(values, codec)
    assert [bodies[i] for i in some] == [encode(values[i], codec) for i in some]
    decoded = decode_many(bodies, expect=codec, count=count).values
    for i in some:
        assert decoded[i].tobytes() == decode(bodies[i], expect=codec, count=count).tobytes()


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.sampled_from(("good", "flip", "cut", "junk", "empty")), max_size=8),
    params,
    counts,
    st.integers(0, 2**32 - 1),
)
def test_each_bad_body_gets_its_own_refusal(what: list[str], codec: CodecParams, count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    bodies: list[bytes] = []
    for i, kind in enumerate(what):
        body = bytearray(encode(vector(i, count, "normal"), codec))
        if kind == "flip":
            body[int(rng.integers(len(body)))] ^= 1 << int(rng.integers(8))
        bodies.append({"cut": bytes(body[:-1]), "junk": rng.bytes(len(body)), "empty": b""}.get(kind, bytes(body)))
    found = decode_many(bodies, expect=codec, count=count)
    assert np.isfinite(found.values).all()
    for i, received in enumerate(bodies):
        assert told(found.values[i], found.refused.get(i)) == alone(received, codec, count)


def test_a_vector_that_is_not_finite_is_named_and_nothing_is_encoded() -> None:
    values = np.zeros((4, 100), dtype=np.float32)
    values[2, 7] = np.nan
    with pytest.raises(ValueError, match=r"\[2\] hold infinite values or NaN"):
        encode_many(values, CodecParams("topk", 64, 16))
    with pytest.raises(ValueError, match="float32 matrix"):
        encode_many(values[0], CodecParams("topk", 64, 16))
