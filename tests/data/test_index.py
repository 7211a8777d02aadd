"""The index is read from a bucket that a stranger may fill: total, bounded, and one encoding only."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common import canonical
from common.data.index import (
    MAX_FILE_TOKENS,
    MAX_INDEX_BYTES,
    DatasetIndex,
    TokenFile,
    decode_index,
    encode_index,
    require_index,
)
from common.errors import Rejected
from common.typed import to_json
from common.units import Sha256, sha256_hex

TRAIN = TokenFile("train", Sha256("a" * 64), 1000, 3)
HELDOUT = TokenFile("heldout", Sha256("b" * 64), 100, 1)
INDEX = DatasetIndex(1, "bytes", 256, "u1", (TRAIN, HELDOUT))
DATA = encode_index(INDEX)


def test_round_trip() -> None:
    assert decode_index(DATA) == INDEX
    assert require_index(DATA, sha256_hex(DATA)) == INDEX
    assert INDEX.tokens("train") == 1000
    assert INDEX.of("heldout") == (HELDOUT,)
    assert TRAIN.name == f"train-{'a' * 64}.tokens"


def test_another_datasets_index_is_refused() -> None:
    with pytest.raises(Rejected, match="not that of dataset"):
        require_index(DATA, Sha256("0" * 64))


@pytest.mark.parametrize(
    ("where", "value"),
    [
        ("schema", 2),
        ("schema", True),
        ("vocab_size", 257),
        ("vocab_size", 0),
        ("dtype", "f4"),
        ("tokenizer", None),
        ("files", []),
        ("files", [to_json(TRAIN), to_json(TRAIN)]),
        ("files", [dict(to_json(TRAIN), sha256="../../etc/passwd")]),  # type: ignore[call-overload]
        ("files", [dict(to_json(TRAIN), sha256="A" * 64)]),  # type: ignore[call-overload]
        ("files", [dict(to_json(TRAIN), sha256="a" * 64 + "\n")]),  # type: ignore[call-overload]
        ("files", [dict(to_json(TRAIN), split="../x")]),  # type: ignore[call-overload]
        ("files", [dict(to_json(TRAIN), tokens=0)]),  # type: ignore[call-overload]
        ("files", [dict(to_json(TRAIN), tokens=MAX_FILE_TOKENS + 1)]),  # type: ignore[call-overload]
        ("files", [dict(to_json(TRAIN), documents=-1)]),  # type: ignore[call-overload]
        ("extra", 1),
    ],
)
def test_wrong_fields_are_refused(where: str, value: object) -> None:
    table = {**json.loads(DATA), where: value}
    with pytest.raises(Rejected) as caught:
        decode_index(canonical.dumps(table))
    assert caught.value.code == "bad_index"


def test_a_missing_field_is_refused() -> None:
    for field in dataclasses.fields(INDEX):
        table = json.loads(DATA)
        del table[field.name]
        with pytest.raises(Rejected, match=field.name):
            decode_index(canonical.dumps(table))


def test_a_long_index_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(Rejected, match="at most"):
        decode_index(b"[" * (MAX_INDEX_BYTES + 1))


@given(st.binary(max_size=2048))
def test_any_bytes_are_refused(data: bytes) -> None:
    refused_or_canonical(data)


@settings(max_examples=300)
@given(st.integers(0, len(DATA) - 1), st.integers(1, 255))
def test_a_changed_byte_is_refused_or_another_index(at: int, flip: int) -> None:
    data = bytearray(DATA)
    data[at] ^= flip
    refused_or_canonical(bytes(data))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from([f.name for f in dataclasses.fields(INDEX)]), JSON))
def test_any_json_is_refused(changes: dict[str, object]) -> None:
    refused_or_canonical(json.dumps({**json.loads(DATA), **changes}, sort_keys=True, separators=(",", ":")).encode())


def refused_or_canonical(data: bytes) -> None:
    try:
        index = decode_index(data)
    except Rejected:
        return
    assert encode_index(index) == data
