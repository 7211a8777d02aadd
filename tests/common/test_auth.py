"""btauth/1 as Brigade uses it: each way to cheat has a code of its own."""

from __future__ import annotations

import pytest

from common.auth import RequestVerifier, check_reply, sign_reply, sign_request
from common.clock import ManualClock, ServerTime
from common.errors import Rejected
from common.identity import KeypairSigner

MINER = KeypairSigner.from_uri("//Miner")
VALIDATOR = KeypairSigner.from_uri("//Validator")
OTHER = KeypairSigner.from_uri("//Other")
START_NS = 1_700_000_000_000_000_000
NOW_NS = START_NS + 5_000_000_000
TARGET = "/v1/heartbeat?x=1"


def signed(nonce_ns=NOW_NS, receiver=VALIDATOR, body=b"{}", target=TARGET):
    return sign_request(MINER, "POST", target, body, receiver.hotkey, nonce_ns)


def check(headers, body=b"{}", target=TARGET, verifier=None):
    verifier = verifier or RequestVerifier(VALIDATOR.hotkey, START_NS)
    return verifier.verify(headers, body, "POST", target, NOW_NS)


def test_an_honest_request_names_its_sender():
    assert check(signed()) == MINER.hotkey


@pytest.mark.parametrize(
    ("code", "headers", "body", "target"),
    [
        ("wrong_receiver", signed(receiver=OTHER), b"{}", TARGET),
        ("bad_signature", signed(), b"{ }", TARGET),
        ("bad_signature", signed(), b"{}", "/v1/heartbeat"),
        ("stale_request", signed(nonce_ns=NOW_NS - 11_000_000_000), b"{}", TARGET),
        ("stale_request", signed(nonce_ns=NOW_NS + 3_000_000_000), b"{}", TARGET),
        ("stale_request", signed(nonce_ns=START_NS - 1), b"{}", TARGET),
        ("malformed_auth", {}, b"{}", TARGET),
        ("malformed_auth", {**signed(), "X-Bittensor-Crypto": "ed25519"}, b"{}", TARGET),
        ("malformed_auth", {**signed(), "X-Bittensor-Nonce": "9" * 5000}, b"{}", TARGET),
        ("malformed_auth", {**signed(), "X-Bittensor-Signature": "0xzz"}, b"{}", TARGET),
        ("bad_signature", {**signed(), "X-Bittensor-Hotkey": str(OTHER.hotkey)}, b"{}", TARGET),
    ],
)
def test_each_cheat_has_its_code(code, headers, body, target):
    with pytest.raises(Rejected) as caught:
        check(headers, body, target)
    assert caught.value.code == code


@pytest.mark.parametrize("shape", ["+{}", " {}", "{} ", "0_{}", "-{}", "\u0661{}", "{}\u00b2", "00{}00", "0x{}", ""])
def test_a_nonce_that_is_not_plain_digits_gets_past_no_check(shape):
    """``int`` reads most of these: a request of before the start must not come back in another spelling."""
    headers = signed(nonce_ns=START_NS - 1)
    with pytest.raises(Rejected) as caught:
        check({**headers, "X-Bittensor-Nonce": shape.format(START_NS - 1)})
    assert caught.value.code == "malformed_auth"


def test_zeros_before_a_nonce_make_it_no_younger():
    with pytest.raises(Rejected) as caught:
        check({**signed(nonce_ns=START_NS - 1), "X-Bittensor-Nonce": f"0{START_NS - 1}"})
    assert caught.value.code == "stale_request"


@pytest.mark.parametrize("name", sorted(signed()))
def test_a_repeated_header_is_refused(name):
    with pytest.raises(Rejected) as caught:
        check({**signed(), name.upper(): signed()[name]})
    assert caught.value.code == "malformed_auth"


def test_a_replay_is_refused():
    verifier = RequestVerifier(VALIDATOR.hotkey, START_NS)
    headers = signed()
    check(headers, verifier=verifier)
    with pytest.raises(Rejected) as caught:
        check(headers, verifier=verifier)
    assert caught.value.code == "replayed_request"


def test_a_reply_is_bound_to_its_request_status_and_body():
    signature = sign_reply(VALIDATOR, "17", 200, b"ok")
    check_reply(VALIDATOR.hotkey, "17", 200, b"ok", signature)
    for server, nonce, status, body in (
        (OTHER, "17", 200, b"ok"),
        (VALIDATOR, "18", 200, b"ok"),
        (VALIDATOR, "17", 409, b"ok"),
        (VALIDATOR, "17", 200, b"no"),
    ):
        with pytest.raises(Rejected):
            check_reply(server.hotkey, nonce, status, body, signature)
    with pytest.raises(Rejected):
        check_reply(VALIDATOR.hotkey, "17", 200, b"ok", "nonsense")


def test_a_wrong_local_clock_does_no_harm():
    clock = ManualClock(epoch_ns=NOW_NS + 300_000_000_000)
    time = ServerTime(clock)
    time.observe(NOW_NS, round_trip_s=0.0)
    assert time.skew_s() == pytest.approx(300)
    assert check(signed(nonce_ns=time.wall_ns())) == MINER.hotkey


def test_nonces_never_repeat():
    time = ServerTime(ManualClock())
    assert len({time.wall_ns() for _ in range(100)}) == 100
