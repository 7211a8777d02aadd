"""A log's head on chain: what is written is read back, and strangers' bytes are refused by type only."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.chain.headcommit import TAG, CommittedHead, decode, encode, of_run
from common.chain.port import MAX_COMMITMENT_FIELD_BYTES
from common.errors import Rejected
from common.units import Sha256

RUNS = st.from_regex(r"[a-z0-9-]{1,48}", fullmatch=True)
HASHES = st.binary(min_size=32, max_size=32).map(lambda raw: Sha256(raw.hex()))
URLS = st.from_regex(r"https?://[\x21-\x7e]{1,120}", fullmatch=True) | st.just("")
HEADS = st.builds(CommittedHead, RUNS, st.integers(0, 10**12 - 1), HASHES, URLS)


@given(HEADS)
def test_a_head_is_read_back_as_it_was_written_and_fits(head: CommittedHead) -> None:
    fields = encode(head)
    assert decode(fields) == head
    assert max(map(len, fields)) <= MAX_COMMITMENT_FIELD_BYTES
    assert of_run(fields, head.run) == head
    assert of_run(fields, head.run + "x") is None


@given(st.lists(st.binary(max_size=200) | st.binary(max_size=120).map(lambda rest: TAG + rest), max_size=4))
def test_strangers_bytes_are_a_head_or_a_typed_refusal(fields: list[bytes]) -> None:
    try:
        head = decode(fields)
    except Rejected:
        assert of_run(fields, "demo") is None
    else:
        assert encode(head) == tuple(fields)


def test_an_address_that_does_not_fit_is_left_out_and_nonsense_is_not_written() -> None:
    long = CommittedHead("demo", 3, Sha256("ab" * 32), "https://" + "x" * 200)
    assert decode(encode(long)).reports == ""
    for head in (CommittedHead("Demo", 0, long.slot_sha256), CommittedHead("demo", -1, long.slot_sha256)):
        with pytest.raises(Rejected):
            encode(head)


def test_what_an_owner_commits_is_no_head() -> None:
    location = (b"brigade/1 head " + b"\0" * 32, b"http://a", b"+bucket")
    assert of_run(location, "head") is None
    assert of_run(None, "demo") is None
