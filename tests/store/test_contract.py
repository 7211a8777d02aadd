"""What every object store must do, checked on the in-memory one and on a real S3 server alike."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from common.errors import Rejected
from common.store.port import ObjectMissing, ObjectStore, PreconditionFailed, PresignedPut
from common.store.reader import StoreReader
from common.units import sha256_hex
from tests.store.bench import Bench, presign


def test_what_was_put_is_read_back(store: ObjectStore) -> None:
    etag = store.put("a/b", b"hello")
    fetched = store.get("a/b", max_bytes=5)
    assert fetched.body == b"hello"
    assert fetched.info.key == "a/b"
    assert fetched.info.size_bytes == 5
    assert fetched.info.etag == etag
    assert store.head("a/b") == fetched.info
    assert store.put("empty", b"")
    assert store.get("empty", max_bytes=0).body == b""


def test_a_missing_object_is_none_or_typed(store: ObjectStore) -> None:
    assert store.head("no/such") is None
    with pytest.raises(ObjectMissing) as missing:
        store.get("no/such", max_bytes=10)
    assert missing.value.code == "object_missing"
    assert missing.value.key == "no/such"


def test_delete_removes_and_is_idempotent(store: ObjectStore) -> None:
    store.put("gone", b"x")
    store.delete("gone")
    store.delete("gone")
    assert store.head("gone") is None


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [(0, 3, b"012"), (7, None, b"789"), (None, 4, b"0123"), (8, 100, b"89"), (9, 10, b"9")],
)
def test_ranges(store: ObjectStore, start: int | None, end: int | None, expected: bytes) -> None:
    store.put("digits", b"0123456789")
    fetched = store.get("digits", start=start, end=end, max_bytes=10)
    assert fetched.body == expected
    assert fetched.info.size_bytes == 10


def test_a_range_beyond_the_end_is_refused(store: ObjectStore) -> None:
    store.put("digits", b"0123456789")
    with pytest.raises(Rejected, match="bad_range"):
        store.get("digits", start=10, max_bytes=10)
    with pytest.raises(ValueError, match="range"):
        store.get("digits", start=4, end=4, max_bytes=10)


def test_more_than_the_caller_wants_is_refused(store: ObjectStore) -> None:
    store.put("digits", b"0123456789")
    with pytest.raises(Rejected, match="too_large"):
        store.get("digits", max_bytes=9)
    assert store.get("digits", start=0, end=9, max_bytes=9).body == b"012345678"


@pytest.mark.parametrize("key", ["", "/a", "a/", "a//b", "a/../b", "..", "a b", "a\n", "é", "a?b", "x" * 901])
def test_keys_that_are_not_plain_are_refused(store: ObjectStore, key: str) -> None:
    for use in (lambda: store.put(key, b"x"), lambda: store.get(key, max_bytes=1), lambda: store.head(key)):
        with pytest.raises(Rejected, match="bad_key"):
            use()


def test_listing_gives_every_page_under_the_prefix(store: ObjectStore) -> None:
    for name in ("log/3", "log/1", "log/2", "log/sub/4", "logs", "other/5", "log/0", "log/6", "log/7"):
        store.put(name, name.encode())
    assert [info.key for info in store.list("log/")][:4] == ["log/0", "log/1", "log/2", "log/3"]
    assert {info.key for info in store.list("log/")} == {f"log/{i}" for i in (0, 1, 2, 3, "sub/4", 6, 7)}
    assert {info.key for info in store.list("log")} == {info.key for info in store.list("log/")} | {"logs"}
    assert len(list(store.list(""))) == 9
    assert next(iter(store.list("other/"))).size_bytes == 7
    assert list(store.list("none/")) == []


def test_a_key_is_created_once(store: ObjectStore) -> None:
    store.put("slot", b"first", if_none_match=True)
    with pytest.raises(PreconditionFailed) as lost:
        store.put("slot", b"second", if_none_match=True)
    assert lost.value.code == "precondition_failed"
    assert store.get("slot", max_bytes=10).body == b"first"
    store.delete("slot")
    store.put("slot", b"third", if_none_match=True)


def test_compare_and_swap(store: ObjectStore) -> None:
    old = store.put("lease", b"one")
    new = store.put("lease", b"two", if_match=old)
    assert new != old
    with pytest.raises(PreconditionFailed):
        store.put("lease", b"late", if_match=old)
    assert store.get("lease", max_bytes=10).body == b"two"
    with pytest.raises(PreconditionFailed):
        store.put("missing", b"x", if_match=old)
    with pytest.raises(ValueError, match="not both"):
        store.put("lease", b"x", if_none_match=True, if_match=new)


def test_a_race_of_sixteen_has_one_winner(store: ObjectStore) -> None:
    def write(number: int) -> int | None:
        try:
            store.put("slot", f"writer {number}".encode(), if_none_match=True)
        except PreconditionFailed:
            return None
        return number

    with ThreadPoolExecutor(16) as pool:
        winners = [number for number in pool.map(write, range(16)) if number is not None]
    assert len(winners) == 1
    assert store.get("slot", max_bytes=20).body == f"writer {winners[0]}".encode()


def test_a_presigned_put_takes_exactly_the_announced_body(bench: Bench) -> None:
    presigned = presign(bench.store, "up/x", b"announced")
    for wrong, code in ((b"different", "checksum_mismatch"), (b"announced!", "size_mismatch"), (b"", "size_mismatch")):
        with pytest.raises(Rejected) as refusal:
            bench.send(presigned, wrong)
        assert refusal.value.code == code
    assert bench.store.head("up/x") is None
    etag = bench.send(presigned, b"announced")
    assert bench.store.get("up/x", max_bytes=20).body == b"announced"
    assert bench.store.head("up/x").etag == etag  # type: ignore[union-attr]


def test_a_second_put_to_the_url_cannot_change_the_object(bench: Bench) -> None:
    presigned = presign(bench.store, "up/x", b"announced")
    bench.send(presigned, b"announced")
    with pytest.raises(Rejected):
        bench.send(presigned, b"different")
    bench.send(presigned, b"announced")  # the same bytes again: a retry after a lost reply
    assert bench.store.get("up/x", max_bytes=20).body == b"announced"


def test_an_expired_url_is_refused_as_such(bench: Bench) -> None:
    with pytest.raises(Rejected) as refusal:
        bench.send(bench.presign_expired("up/x", b"late"), b"late")
    assert refusal.value.code == "url_expired"
    assert bench.store.head("up/x") is None


def test_a_presigned_url_is_for_one_key(bench: Bench) -> None:
    presigned = presign(bench.store, "up/mine", b"mine")
    elsewhere = PresignedPut(presigned.url.replace("up/mine", "up/yours"), presigned.headers)
    with pytest.raises(Rejected) as refusal:
        bench.send(elsewhere, b"mine")
    assert refusal.value.code == "url_refused"
    assert bench.store.head("up/yours") is None


def test_urls_and_their_headers_stay_out_of_repr(bench: Bench) -> None:
    presigned = presign(bench.store, "up/x", b"announced")
    assert "ignature" not in repr(presigned)
    assert presigned.url not in repr(presigned)


def test_a_reader_checks_size_and_hash(store: ObjectStore) -> None:
    store.put("x", b"content")
    reader = StoreReader(store)
    good = sha256_hex(b"content")
    assert reader.fetch("x", max_bytes=7, sha256=good, size_bytes=7) == b"content"
    for arguments, code in (
        ({"max_bytes": 6}, "too_large"),
        ({"max_bytes": 9, "size_bytes": 8}, "size_mismatch"),
        ({"max_bytes": 9, "sha256": sha256_hex(b"other")}, "checksum_mismatch"),
    ):
        with pytest.raises(Rejected) as refusal:
            reader.fetch("x", **arguments)  # type: ignore[arg-type]
        assert refusal.value.code == code
