"""The run's location on chain: what is encoded comes back, and a stranger's bytes are refused in one way only."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.chain.commitment import TAG, RunLocation, decode, encode
from common.errors import Rejected
from common.units import Sha256

SPEC = Sha256("ab" * 32)
LOCATION = RunLocation("first-run", SPEC, "https://account.r2.example.com", "brigade-runs", "public/v1", True)
GOOD = encode(LOCATION)

locations = st.builds(
    RunLocation,
    run=st.from_regex(r"[a-z0-9-]{1,48}", fullmatch=True),
    spec_sha256=st.binary(min_size=32, max_size=32).map(lambda raw: Sha256(raw.hex())),
    endpoint=st.sampled_from(["http://127.0.0.2:8333", "https://s3.eu-west-1.amazonaws.com", "http://[fd00::1]:80"]),
    bucket=st.from_regex(r"[a-z0-9][a-z0-9.\-]{1,40}[a-z0-9]", fullmatch=True),
    prefix=st.from_regex(r"([A-Za-z0-9][A-Za-z0-9._\-]{0,9}/){0,3}[A-Za-z0-9]{1,9}|", fullmatch=True),
    public_read=st.booleans(),
)


@given(locations)
def test_round_trip(location: RunLocation) -> None:
    fields = encode(location)
    assert all(len(field) <= 128 for field in fields)
    assert decode(fields) == location


def test_the_fields_are_what_the_design_says() -> None:
    assert (
        TAG + b"first-run " + bytes.fromhex(SPEC),
        b"https://account.r2.example.com",
        b"+brigade-runs/public/v1",
    ) == GOOD


@given(st.lists(st.binary(max_size=200), max_size=5))
def test_any_bytes_are_decoded_or_rejected(fields: list[bytes]) -> None:
    _decode_or_reject(fields)


@given(st.integers(0, 2), st.binary(max_size=160))
def test_one_foreign_field_among_good_ones(index: int, foreign: bytes) -> None:
    _decode_or_reject([foreign if i == index else field for i, field in enumerate(GOOD)])


def _decode_or_reject(fields: list[bytes]) -> None:
    with contextlib.suppress(Rejected):
        location = decode(fields)
        assert list(encode(location)) == fields


@pytest.mark.parametrize(
    ("index", "field"),
    [
        (0, b"brigade/2 first-run " + bytes(32)),
        (0, b"ipfs://something"),
        (0, TAG + b"first-run " + bytes(31)),
        (0, TAG + b"First " + bytes(32)),
        (0, TAG + b" " + bytes(32)),
        (1, b"https://user:secret@example.com"),
        (1, b"https://example.com/path"),
        (1, b"file:///etc"),
        (1, b"https://example.com:99999"),
        (2, b"Bucket/prefix"),
        (2, b"bucket/../other"),
        (2, b"bucket//x"),
        (2, b"bucket/"),
        (2, b"bucket/p\n"),
        (2, b"bucket/p?x=1"),
        (2, "bücket/p".encode()),
    ],
)
def test_places_that_are_none(index: int, field: bytes) -> None:
    with pytest.raises(Rejected) as refused:
        decode([field if i == index else good for i, good in enumerate(GOOD)])
    assert refused.value.code == "bad_commitment"


def test_a_newer_version_says_update() -> None:
    with pytest.raises(Rejected, match="update brigade"):
        decode((b"brigade/2 first-run " + bytes(32), *GOOD[1:]))


def test_what_is_too_long_is_refused_when_written() -> None:
    with pytest.raises(Rejected, match="longer than"):
        encode(RunLocation("r", SPEC, LOCATION.endpoint, "bucket", "p" * 128, False))
