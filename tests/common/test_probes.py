"""What a probe transfers, and its messages: bound to a nonce, bounded, and readable by who knows no probes."""

from __future__ import annotations

import json
import zlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common import keys
from common.errors import Rejected
from common.probes import MAX_PROBE_BYTES, MIN_PROBE_BYTES, downlink_proof, uplink_bytes
from common.units import Hotkey
from common.wire import HeartbeatReply, ProbeAnswer, ProbeOrder, UploadTarget, parse
from tests.runlog.support import MINERS

NONCE, OTHER = "ab" * 16, "ac" * 16
TARGET = {"url": "http://127.0.0.1/x", "headers": {}, "expires_in_s": 1.0}
UP = {"nonce": NONCE, "kind": "uplink", "size_bytes": MIN_PROBE_BYTES, "upload": TARGET, "seconds_left": 5.0}
_JSON = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=40) | st.lists(st.text(max_size=3))


def reply(**changes: Any) -> HeartbeatReply:
    return HeartbeatReply(
        server_ns=1,
        leader=MINERS[0].hotkey,
        instance="ab" * 8,
        term=1,
        next_seq=1,
        round=None,
        delivered=False,
        score=None,
        **changes,
    )


def test_the_bytes_of_the_uplink_follow_from_the_nonce_and_nothing_compresses_them() -> None:
    body = uplink_bytes(NONCE, MIN_PROBE_BYTES)
    assert len(body) == MIN_PROBE_BYTES
    assert body == uplink_bytes(NONCE, MAX_PROBE_BYTES)[:MIN_PROBE_BYTES]
    assert body[:64] != uplink_bytes(OTHER, 64)
    assert len(zlib.compress(body)) > 0.99 * len(body)


def test_a_proof_is_of_these_bytes_under_this_nonce() -> None:
    proofs = {downlink_proof(nonce, body) for nonce in (NONCE, OTHER) for body in (b"", b"x", b"xy")}
    assert len(proofs) == 6


def test_an_order_says_where_its_bytes_go_if_there_are_any() -> None:
    assert parse(ProbeOrder, json.dumps(UP).encode()).upload == UploadTarget(**TARGET)  # type: ignore[arg-type]
    down = UP | {"kind": "downlink", "upload": None}
    assert parse(ProbeOrder, json.dumps(down).encode()).upload is None
    for wrong in (
        UP | {"upload": None},
        down | {"upload": TARGET},
        UP | {"size_bytes": MAX_PROBE_BYTES + 1},
        UP | {"size_bytes": MIN_PROBE_BYTES - 1},
        UP | {"kind": "compute"},
        UP | {"nonce": NONCE + "ab"},
        UP | {"seconds_left": 1e9},
    ):
        with pytest.raises(Rejected) as refusal:
            parse(ProbeOrder, json.dumps(wrong).encode())
        assert refusal.value.code == "bad_message"


@settings(deadline=None, max_examples=150)
@given(
    kind=st.sampled_from([ProbeOrder, ProbeAnswer]),
    changes=st.dictionaries(st.sampled_from([*UP, "busy", "proof", "more"]), _JSON, max_size=4),
    cut=st.integers(0, 400),
)
def test_strangers_bytes_are_a_message_or_a_typed_refusal(kind: Any, changes: dict[str, Any], cut: int) -> None:
    data = json.dumps((UP if kind is ProbeOrder else {"nonce": NONCE}) | changes).encode()
    for body in (data, data[:cut]):
        try:
            message = parse(kind, body)
        except Rejected:  # and nothing else
            continue
        assert parse(kind, message.model_dump_json().encode()) == message


def test_a_reply_without_an_order_is_what_it_was_before_there_were_probes() -> None:
    bare = reply()
    assert "probe" not in json.loads(bare.model_dump_json())
    assert parse(HeartbeatReply, bare.model_dump_json().encode()) == bare
    order = parse(ProbeOrder, json.dumps(UP).encode())
    ordered = reply(probe=order)
    assert parse(HeartbeatReply, ordered.model_dump_json().encode()).probe == order


def test_the_keys_of_probes_are_two_for_each_hotkey_and_of_no_round_or_revision() -> None:
    hotkey = MINERS[0].hotkey
    made = {keys.probe_key("tiny", hotkey, way) for way in ("up", "down")}
    assert len(made) == 2
    for key in made:
        parts = keys.parse_key("tiny", key)
        assert parts == keys.KeyParts("probe", hotkey=hotkey)
    for wrong in (f"runs/tiny/probes/{hotkey}/side", f"runs/tiny/probes/{Hotkey('x')}/up"):
        assert keys.parse_key("tiny", wrong) is None
