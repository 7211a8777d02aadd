"""An owner's signed word: round trips, refusals, and totality on whatever bytes or JSON a stranger sends."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common import canonical, keys
from common.errors import Rejected
from common.identity import KeypairSigner, sign_record
from common.records import ObjectRef
from common.reductions import (
    MAX_COPIES,
    MAX_REDUCTION_BYTES,
    REDUCTION,
    Copy,
    Reduction,
    decode_reduction,
    open_reduction,
    require_signer,
    sign_reduction,
)
from common.spec import MAX_PARTITIONS
from common.typed import to_json
from common.units import RoundId, Sha256, ShardId

OWNER = KeypairSigner.from_uri("//Miner")
OTHER = KeypairSigner.from_uri("//Other")
RUN = "demo"
CODES = {"bad_json", "bad_record", "wrong_run", "unknown_schema", "bad_signature", "bad_reduction"}

digests = st.binary(min_size=32, max_size=32).map(lambda data: Sha256(data.hex()))
integers = st.integers(0, canonical.MAX_INTEGER)
numbers = st.integers(0, 10**9 - 1)
"""Of rounds and shards, as keys can hold them."""
places = st.tuples(numbers, st.integers(0, MAX_PARTITIONS - 1))
copies = st.builds(
    lambda place, sha256, size, inputs: Copy(ShardId(place[0]), place[1], ObjectRef(sha256, size), inputs),
    places,
    digests,
    st.integers(1, 2**40),
    digests,
)
reductions = st.builds(
    lambda round_id, plan, named: Reduction(1, RUN, OWNER.hotkey, RoundId(round_id), plan, tuple(named)),
    numbers,
    digests,
    st.lists(copies, min_size=1, max_size=8, unique_by=lambda copy: (copy.shard, copy.partition)),
)


def word(count: int = 2) -> Reduction:
    mean = ObjectRef(Sha256("ab" * 32), 16384)
    named = tuple(Copy(ShardId(0), number, mean, Sha256("cd" * 32)) for number in range(count))
    return Reduction(1, RUN, OWNER.hotkey, RoundId(3), Sha256("ef" * 32), named)


def body() -> dict[str, Any]:
    made = to_json(word())
    assert isinstance(made, dict)
    return made


def code_of(value: Any) -> str:
    """Of the refusal; anything else than a refusal with a known code fails the test."""
    with pytest.raises(Rejected) as caught:
        open_reduction(value, RUN)
    assert caught.value.code in CODES
    return caught.value.code


def outcome(value: Any) -> Any:
    """What is read, as JSON, or the code of the refusal."""
    try:
        made, _ = open_reduction(value, RUN)
    except Rejected as refusal:
        return refusal.code
    return to_json(made)


@settings(max_examples=60, deadline=None)
@given(reductions)
def test_what_was_signed_is_what_is_read(made: Reduction) -> None:
    record = sign_reduction(made, OWNER)
    data = record.encode()
    assert len(data) <= MAX_REDUCTION_BYTES
    assert decode_reduction(data, RUN) == open_reduction(record.to_json(), RUN) == (made, record)
    require_signer(made, record)
    for copy in made.copies:
        parts = keys.parse_key(RUN, made.key_of(copy))
        assert parts is not None
        assert (parts.kind, parts.round_id, parts.shard, parts.hotkey, parts.sha256) == (
            "mean", made.round, copy.shard, made.signer, copy.mean.sha256
        )  # fmt: skip


def test_the_largest_word_fits_and_one_more_copy_does_not_exist() -> None:
    assert len(sign_reduction(word(MAX_COPIES), OWNER).encode()) <= MAX_REDUCTION_BYTES
    with pytest.raises(ValueError, match=f"1 to {MAX_COPIES} means"):
        word(MAX_COPIES + 1)


def test_only_its_signer_may_sign_it() -> None:
    with pytest.raises(ValueError, match="another signer"):
        sign_reduction(word(), OTHER)
    made, record = word(), sign_reduction(word(), OWNER)
    with pytest.raises(Rejected, match="bad_reduction"):
        require_signer(dataclasses.replace(made, signer=OTHER.hotkey), record)


@settings(max_examples=200)
@given(st.integers(0, len(sign_reduction(word(), OWNER).encode()) - 1), st.integers(1, 255))
def test_flipped_bytes_are_refused(at: int, flip: int) -> None:
    data = bytearray(sign_reduction(word(), OWNER).encode())
    data[at] ^= flip
    with pytest.raises(Rejected):
        decode_reduction(bytes(data), RUN)


@settings(max_examples=300)
@given(st.binary(max_size=400))
def test_random_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(Rejected) as caught:
        decode_reduction(data, RUN)
    assert caught.value.code in CODES


def test_words_that_are_too_long_are_refused_unread() -> None:
    for data in (b" " * (MAX_REDUCTION_BYTES + 1), sign_reduction(word(), OWNER).encode() + b" " * 2**17):
        with pytest.raises(Rejected, match=f"at most {MAX_REDUCTION_BYTES}"):
            decode_reduction(data, RUN)


json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=70),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=300)
@given(json_values)
def test_random_json_is_refused(value: Any) -> None:
    code_of(value)
    code_of({"body": value, "signature": "0" * 128})
    code_of({"body": body(), "signature": value})
    try:
        data = canonical.dumps(value)
    except ValueError:
        return  # no canonical form
    with pytest.raises(Rejected):
        decode_reduction(data, RUN)


PATHS: tuple[tuple[str | int, ...], ...] = (
    ("schema",), ("run",), ("round",), ("plan_sha256",), ("copies",), ("more",), ("copies", 0),
    ("copies", 0, "shard"), ("copies", 0, "partition"), ("copies", 0, "mean"), ("copies", 0, "inputs_sha256"),
    ("copies", 0, "mean", "sha256"), ("copies", 0, "mean", "size_bytes"), ("copies", 0, "more"),
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(PATHS), json_values | digests | integers)
def test_whatever_is_signed_is_read_as_it_stands_or_refused(path: tuple[str | int, ...], value: Any) -> None:
    """The signature is right, so only the reader stands between the sender and what is made of it."""
    changed: Any = body()
    place = changed
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    try:
        record = sign_record(REDUCTION, changed, OWNER)
    except ValueError:
        return  # no canonical form, so nobody can sign it
    assert outcome(record.to_json()) in (record.body, *CODES)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"schema": 2}, "unknown_schema"),
        ({"schema": True}, "bad_reduction"),
        ({"run": "another"}, "wrong_run"),
        ({"round": -1}, "bad_reduction"),
        ({"round": True}, "bad_reduction"),
        ({"plan_sha256": "EF" * 32}, "bad_reduction"),
        ({"plan_sha256": "ef" * 31}, "bad_reduction"),
        ({"copies": []}, "bad_reduction"),
        ({"copies": {}}, "bad_reduction"),
        ({"copies": body()["copies"][:1] * 2}, "bad_reduction"),
        ({"copies": [{**body()["copies"][0], "partition": MAX_PARTITIONS}]}, "bad_reduction"),
        ({"copies": [{**body()["copies"][0], "shard": -1}]}, "bad_reduction"),
        ({"copies": [{**body()["copies"][0], "mean": {"sha256": "ab" * 32, "size_bytes": -4}}]}, "bad_reduction"),
        ({"more": 1}, "bad_reduction"),
    ],
)
def test_each_wrong_field_has_its_code(change: dict[str, Any], code: str) -> None:
    assert code_of(sign_record(REDUCTION, {**body(), **change}, OWNER).to_json()) == code


@pytest.mark.parametrize("signer", ["", "x", "5" * 48, "5" * 4096, "\u00e9" * 48, "\0", OTHER.hotkey, None, 7, [], {}])
def test_a_signer_that_is_nobody_or_somebody_else_has_not_signed_it(signer: Any) -> None:
    record = sign_record(REDUCTION, body(), OWNER)
    assert code_of({"body": {**record.body, "signer": signer}, "signature": record.signature}) == "bad_signature"


def test_a_word_of_another_kind_is_none() -> None:
    assert code_of(sign_record("manifest", body(), OWNER).to_json()) == "bad_signature"
