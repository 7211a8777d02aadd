"""Signed records: what a stranger, a thief or a flipped bit can do with them, which is nothing."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import Rejected
from common.identity import KeypairSigner, decode_record, open_record, sign_record, verify

ALICE = KeypairSigner.from_uri("//Alice")
BOB = KeypairSigner.from_uri("//Bob")
RECORD = sign_record("manifest", {"schema": 1, "run": "demo", "tokens": 5}, ALICE)


def reopen(value, kind="manifest", run="demo", schema=1):
    return open_record(kind, value, run, schema)


def test_round_trip_names_the_signer():
    record = decode_record("manifest", RECORD.encode(), "demo", 1, 10_000)
    assert record == RECORD
    assert record.signer == ALICE.hotkey


def test_a_signature_holds_for_its_kind_run_and_schema_only():
    for wrong, code in (
        ({"kind": "receipt"}, "bad_signature"),
        ({"run": "other"}, "wrong_run"),
        ({"schema": 2}, "unknown_schema"),
    ):
        with pytest.raises(Rejected) as caught:
            reopen(RECORD.to_json(), **wrong)
        assert caught.value.code == code


def test_a_changed_body_or_another_signer_is_refused():
    for body in ({**RECORD.body, "tokens": 6}, {**RECORD.body, "signer": str(BOB.hotkey)}, {**RECORD.body, "x": 1}):
        with pytest.raises(Rejected) as caught:
            reopen({"body": body, "signature": RECORD.signature})
        assert caught.value.code == "bad_signature"


@settings(max_examples=150)
@given(st.integers(0, len(RECORD.encode()) - 1), st.integers(1, 255))
def test_every_flipped_byte_is_refused(at, flip):
    data = bytearray(RECORD.encode())
    data[at] ^= flip
    with pytest.raises(Rejected):
        decode_record("manifest", bytes(data), "demo", 1, 10_000)


@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=5),
        lambda x: st.lists(x) | st.dictionaries(st.sampled_from(["body", "signature", "signer", "schema", "run"]), x),
        max_leaves=8,
    )
)
def test_foreign_values_never_raise_anything_else(value):
    with pytest.raises(Rejected):
        reopen(value)


@given(st.text(max_size=60), st.binary(max_size=70))
def test_verification_is_total(hotkey, signature):
    assert verify(hotkey, b"message", signature) is False
