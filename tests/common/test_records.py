"""Spec, keys, manifests, receipts and messages: round trips, refusals, and totality on foreign bytes."""

from __future__ import annotations

import contextlib
import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common import canonical, keys, wire
from common.errors import Rejected
from common.identity import KeypairSigner
from common.records import (
    Manifest,
    ObjectRef,
    Receipt,
    SampleRange,
    StoredSubmission,
    decode_submission,
    open_manifest,
    sign_manifest,
    sign_receipt,
)
from common.spec import decode_spec, encode_spec
from common.typed import to_json
from common.units import Hotkey, Sha256
from tests.support.specs import tiny_spec

MINER = KeypairSigner.from_uri("//Miner")
LEADER = KeypairSigner.from_uri("//Leader")
DELTA = Sha256("ab" * 32)
BASE = Sha256("cd" * 32)


def manifest(**changes):
    fields = dict(
        schema=1,
        run="demo",
        signer=MINER.hotkey,
        key=keys.delta_key("demo", 3, 0, MINER.hotkey, DELTA),
        round=3,
        base_revision=2,
        base_sha256=BASE,
        shard=0,
        delta=ObjectRef(DELTA, 100),
        tokens=10,
        steps=1,
        final=True,
        samples=(SampleRange(2, 1, 5, 3), SampleRange(3, 2, 0, 5)),
        trace_root=BASE,
        partitions=(DELTA,),
    )
    return Manifest(**{**fields, **changes})


def submission():
    record = sign_manifest(manifest(), MINER)
    receipt = Receipt(
        schema=1,
        run="demo",
        signer=LEADER.hotkey,
        round=3,
        shard=0,
        hotkey=MINER.hotkey,
        manifest_sha256=record.sha256,
        delta_sha256=DELTA,
        term=1,
        received_ms=5,
    )
    return StoredSubmission(manifest(), receipt, record, sign_receipt(receipt, LEADER))


def test_spec_round_trip_and_unknown_fields():
    spec = tiny_spec()
    assert decode_spec(encode_spec(spec)) == spec
    table = to_json(spec)
    for change in ({"extra": 1}, {"netuid": "1"}, {"netuid": True}, {"schema": 2}, {"validators": []}):
        with pytest.raises(Rejected):
            decode_spec(canonical.dumps({**table, **change}))
    del table["seed"]
    with pytest.raises(Rejected, match="seed is missing"):
        decode_spec(canonical.dumps(table))


@settings(max_examples=100)
@given(st.integers(0, len(encode_spec(tiny_spec())) - 1), st.integers(1, 255))
def test_flipped_spec_bytes_are_refused_or_another_spec(at, flip):
    data = bytearray(encode_spec(tiny_spec()))
    data[at] ^= flip
    with contextlib.suppress(Rejected):
        assert encode_spec(decode_spec(bytes(data))) == bytes(data)


def test_a_manifest_cannot_name_somebody_elses_key():
    with pytest.raises(ValueError, match="another signer"):
        sign_manifest(manifest(), LEADER)
    foreign = keys.delta_key("demo", 3, 0, LEADER.hotkey, DELTA)
    with pytest.raises(Rejected) as caught:
        open_manifest(sign_manifest(manifest(key=foreign), MINER).to_json(), "demo")
    assert caught.value.code == "wrong_key"


def test_a_manifest_names_samples_of_streams_that_were_there():
    assert manifest().sample_count == 8
    later_round, later_base = (SampleRange(4, 2, 0, 1),), (SampleRange(3, 3, 0, 1),)
    for samples in (later_round, later_base, (SampleRange(3, 2, 0, 1),) * 65):
        with pytest.raises(ValueError, match="sample"):
            manifest(samples=samples)
    with pytest.raises(ValueError, match="at least one sample"):
        SampleRange(3, 2, 0, 0)


def test_a_receipt_belongs_to_its_manifest():
    good = submission()
    assert decode_submission(good.encode(), "demo") == good
    other = sign_manifest(manifest(tokens=11), MINER)
    with pytest.raises(Rejected) as caught:
        decode_submission(dataclasses.replace(good, manifest_record=other).encode(), "demo")
    assert caught.value.code == "bad_receipt"


@settings(max_examples=150)
@given(st.integers(0, len(submission().encode()) - 1), st.integers(1, 255))
def test_flipped_manifest_objects_are_refused(at, flip):
    data = bytearray(submission().encode())
    data[at] ^= flip
    with pytest.raises(Rejected):
        decode_submission(bytes(data), "demo")


def test_every_key_parses_back_to_its_parts():
    run, hotkey = "demo", Hotkey(str(MINER.hotkey))
    made = {
        "spec": keys.spec_key(run),
        "lease": keys.lease_key(run),
        "log": keys.log_key(run, 17),
        "delta": keys.delta_key(run, 3, 1, hotkey, DELTA),
        "manifest": keys.manifest_key(run, 3, 1, hotkey, DELTA),
        "update": keys.update_key(run, 3, 1, DELTA),
        "snapshot": keys.snapshot_key(run, 4, 1, DELTA),
        "report": keys.report_key(run, hotkey, 3, DELTA),
        "conviction": keys.conviction_key(run, hotkey, 3, DELTA),
    }
    for kind, key in made.items():
        parts = keys.parse_key(run, key)
        assert parts is not None
        assert parts.kind == kind
    assert keys.parse_key(run, made["delta"]).hotkey == hotkey
    assert keys.parse_key(run, made["log"]).seq == 17


@given(st.text(max_size=80))
def test_keys_of_strangers_parse_to_nothing(text):
    assert keys.parse_key("demo", "runs/demo/rounds/../" + text) is None


@pytest.mark.parametrize("kind", [wire.Heartbeat, wire.SubmissionRequest, wire.CompleteRequest, wire.HeartbeatReply])
@given(data=st.binary(max_size=120))
def test_messages_are_total(kind, data):
    with pytest.raises(Rejected):
        wire.parse(kind, data)


def test_messages_refuse_unknown_fields_and_coercion():
    good = wire.CompleteRequest(round=1, shard=0, delta_sha256=DELTA).model_dump()
    assert wire.parse(wire.CompleteRequest, canonical.dumps(good)).round == 1
    for change in ({"x": 1}, {"round": "1"}, {"round": -1}, {"delta_sha256": "AB" * 32}):
        with pytest.raises(Rejected) as caught:
            wire.parse(wire.CompleteRequest, canonical.dumps({**good, **change}))
        assert caught.value.code == "bad_message"
