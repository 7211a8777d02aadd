"""Objects in parts: what every store must do, on the one in memory and on a real S3 server; and how bodies are cut."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import Rejected, Retryable
from common.store.config import StorageConfig
from common.store.http import HttpClient
from common.store.memory import MemoryStore
from common.store.multipart import (
    MIN_PART_BYTES,
    PART_BYTES,
    PartInfo,
    UploadMissing,
    md5_hex,
    missing_parts,
    newest_parts,
    part_count,
    part_digests,
    part_range,
)
from common.store.port import ObjectStore, PresignedPut
from common.store.s3 import S3Store
from common.store.transfer import upload
from tests.store.bench import Bench, presign, presign_part
from tests.support.faultproxy import FaultProxy
from tests.support.httpserver import Reply, ScriptedServer
from tests.support.storage import quick_store

KEY = "rounds/7/0/miner/x.delta"
FIRST = random.Random(1).randbytes(MIN_PART_BYTES)
SECOND = random.Random(2).randbytes(MIN_PART_BYTES)
LAST = b"the last part may be short"
PARTS = {1: FIRST, 2: SECOND, 3: LAST}


def begin(bench: Bench, *numbers: int) -> str:
    """An upload with these parts of ``PARTS``."""
    upload_id = bench.store.create_multipart(KEY)
    for number in numbers:
        bench.send(presign_part(bench.store, KEY, upload_id, number, PARTS[number]), PARTS[number])
    return upload_id


def facts(parts: tuple[PartInfo, ...]) -> list[tuple[int, int]]:
    return [(part.number, part.size_bytes) for part in parts]


def test_the_object_appears_whole_when_the_upload_is_completed(bench: Bench) -> None:
    upload_id = begin(bench, 3, 1, 2)
    parts = bench.store.list_parts(KEY, upload_id)
    assert facts(parts) == [(1, MIN_PART_BYTES), (2, MIN_PART_BYTES), (3, len(LAST))]
    assert [part.etag for part in parts] == [f'"{md5_hex(PARTS[number])}"' for number in (1, 2, 3)]
    assert bench.store.head(KEY) is None
    assert list(bench.store.list("rounds/")) == []
    etag = bench.store.complete_multipart(KEY, upload_id, parts)
    fetched = bench.store.get(KEY, max_bytes=1 << 24)
    assert fetched.body == FIRST + SECOND + LAST
    assert fetched.info.etag == etag
    assert list(bench.store.list_uploads(KEY)) == []


def test_any_process_finds_the_upload_and_its_parts_again(bench: Bench) -> None:
    mine = {begin(bench, 1), begin(bench)}
    begin_elsewhere = bench.store.create_multipart(f"{KEY}2")
    found = list(bench.store.list_uploads("rounds/7/"))
    assert {upload.upload_id for upload in found if upload.key == KEY} == mine
    assert {upload.key for upload in found} == {KEY, f"{KEY}2"}
    assert {upload.upload_id for upload in bench.store.list_uploads(f"{KEY}2")} == {begin_elsewhere}
    assert list(bench.store.list_uploads("rounds/8/")) == []


def test_listings_have_every_page(bench: Bench) -> None:
    keys = [f"many/{number}" for number in range(7)]
    ids = {bench.store.create_multipart(key) for key in [*keys, *keys[:3]]}
    assert {upload.upload_id for upload in bench.store.list_uploads("many/")} == ids
    upload_id = bench.store.create_multipart(KEY)
    for number in range(1, 8):
        bench.send(presign_part(bench.store, KEY, upload_id, number, b"part"), b"part")
    assert facts(bench.store.list_parts(KEY, upload_id)) == [(number, 4) for number in range(1, 8)]


@pytest.mark.parametrize(
    ("body", "code"),
    [(SECOND, "checksum_mismatch"), (FIRST + b"x", "size_mismatch"), (FIRST[:-1], "size_mismatch")],
    ids=["other bytes", "longer", "shorter"],
)
def test_a_part_is_bound_to_its_bytes(bench: Bench, body: bytes, code: str) -> None:
    upload_id = begin(bench)
    with pytest.raises(Rejected) as refusal:
        bench.send(presign_part(bench.store, KEY, upload_id, 1, FIRST), body)
    assert refusal.value.code == code
    assert bench.store.list_parts(KEY, upload_id) == ()


def test_a_url_is_for_one_part_of_one_upload(bench: Bench) -> None:
    upload_id, other = begin(bench), begin(bench)
    presigned = presign_part(bench.store, KEY, upload_id, 1, FIRST)
    bare = {name: value for name, value in presigned.headers.items() if name != "content-md5"}
    moved = presigned.url.replace("partNumber=1", "partNumber=2").replace("?signature=", "?signature=f")
    elsewhere = presigned.url.replace(upload_id, other).replace("?signature=", "?signature=f")
    for wrong in (PresignedPut(presigned.url, bare), PresignedPut(moved, presigned.headers),
                  PresignedPut(elsewhere, presigned.headers)):  # fmt: skip
        with pytest.raises(Rejected, match="url_refused"):
            bench.send(wrong, FIRST)
    assert bench.store.list_parts(KEY, upload_id) == bench.store.list_parts(KEY, other) == ()


def test_the_same_part_may_be_put_again(bench: Bench) -> None:
    upload_id = begin(bench, 1, 1, 2)
    parts = newest_parts(bench.store.list_parts(KEY, upload_id))
    bench.store.complete_multipart(KEY, upload_id, [parts[1], parts[2]])
    assert bench.store.get(KEY, max_bytes=1 << 24).body == FIRST + SECOND


def test_parts_that_make_no_object_are_refused(bench: Bench) -> None:
    upload_id = begin(bench, 1, 3)
    first, last = bench.store.list_parts(KEY, upload_id)
    never_put = replace(last, number=2, etag=f'"{md5_hex(b"never put")}"')
    for parts in ([first, never_put], [last, first], [first, replace(last, etag=never_put.etag)]):
        with pytest.raises(Rejected) as refusal:
            bench.store.complete_multipart(KEY, upload_id, parts)
        assert refusal.value.code == "bad_parts"
    assert bench.store.head(KEY) is None
    bench.store.complete_multipart(KEY, upload_id, [first, last])


def test_a_part_below_the_minimum_is_refused(bench: Bench) -> None:
    upload_id = bench.store.create_multipart(KEY)
    for number in (1, 2):
        bench.send(presign_part(bench.store, KEY, upload_id, number, LAST), LAST)
    with pytest.raises(Rejected, match="bad_parts"):
        bench.store.complete_multipart(KEY, upload_id, bench.store.list_parts(KEY, upload_id))


def test_an_upload_that_is_over_is_missing(bench: Bench) -> None:
    store, gone = bench.store, begin(bench, 1)
    late = presign_part(store, KEY, gone, 2, SECOND)
    parts = store.list_parts(KEY, gone)
    store.abort_multipart(KEY, gone)
    store.abort_multipart(KEY, gone)
    store.abort_multipart(KEY, "never-was")
    assert list(store.list_uploads(KEY)) == []
    with pytest.raises(UploadMissing):
        store.list_parts(KEY, gone)
    with pytest.raises(UploadMissing):
        store.complete_multipart(KEY, gone, parts)
    with pytest.raises(Rejected, match="upload_refused"):
        bench.send(late, SECOND)
    assert store.head(KEY) is None


def test_keys_of_uploads_are_plain(store: ObjectStore) -> None:
    for use in (lambda: store.create_multipart("a/../b"), lambda: store.list_parts("a b", "x"),
                lambda: store.abort_multipart("/a", "x")):  # fmt: skip
        with pytest.raises(Rejected, match="bad_key"):
            use()


def test_a_lost_reply_to_the_completion_is_asked_again(config: StorageConfig, http: HttpClient, s3: S3Store) -> None:
    upload_id = begin(Bench(s3, lambda put, body: upload(put.url, put.headers, body, http=http), presign), 1, 2)
    with FaultProxy(config.endpoint) as proxy:
        proxy.lose_replies()
        through = quick_store(replace(config, endpoint=proxy.endpoint))
        through.complete_multipart(KEY, upload_id, s3.list_parts(KEY, upload_id))
        assert proxy.connections == 2
    assert s3.get(KEY, max_bytes=1 << 24).body == FIRST + SECOND


@pytest.mark.parametrize(
    ("status", "code", "error"),
    [(404, "NoSuchUpload", UploadMissing), (400, "InvalidPart", Rejected), (503, "SlowDown", Retryable)],
)
def test_what_services_answer_to_a_completion(
    config: StorageConfig, status: int, code: str, error: type[Exception]
) -> None:
    """R2 knows a completed upload no more; SeaweedFS completes it once more."""
    reply = Reply(status, f"<Error><Code>{code}</Code></Error>".encode())
    with ScriptedServer(lambda _: reply) as server:
        store = quick_store(replace(config, endpoint=server.url()))
        with pytest.raises(error):
            store.complete_multipart(KEY, "id", [PartInfo(1, 4, '"etag"', 0.0)])


def test_parts_of_unequal_size_are_refused_as_r2_does() -> None:
    store = MemoryStore(min_part_bytes=4)
    upload_id = store.create_multipart(KEY)
    for number, body in ((1, b"fourfour"), (2, b"five5"), (3, b"end")):
        presigned = presign_part(store, KEY, upload_id, number, body)
        store.redeem_put(presigned.url, presigned.headers, body)
    with pytest.raises(Rejected, match="equal"):
        store.complete_multipart(KEY, upload_id, store.list_parts(KEY, upload_id))
    first, _, last = store.list_parts(KEY, upload_id)
    store.complete_multipart(KEY, upload_id, [first, last])


@settings(deadline=None)
@given(size=st.integers(0, 500), part_bytes=st.integers(1, 60))
def test_parts_are_equal_and_cover_the_body(size: int, part_bytes: int) -> None:
    body = bytes(range(256)) * 2
    count = part_count(size, part_bytes)
    ranges = [part_range(size, part_bytes, number) for number in range(1, count + 1)]
    assert b"".join(body[start:end] for start, end in ranges) == body[:size]
    assert all(end - start == part_bytes for start, end in ranges[:-1])
    assert ranges[-1][1] - ranges[-1][0] <= part_bytes
    digests = part_digests(body[:size], part_bytes)
    assert len(digests) == (count if count > 1 else 0)
    assert all(digest == md5_hex(body[start:end]) for digest, (start, end) in zip(digests, ranges, strict=False))


def test_one_part_is_what_s3_takes() -> None:
    assert MIN_PART_BYTES <= PART_BYTES
    assert part_digests(bytes(PART_BYTES), PART_BYTES) == ()
    assert len(part_digests(bytes(PART_BYTES + 1), PART_BYTES)) == 2


def test_what_is_missing_is_told_by_hash_where_etags_are_hashes_and_else_by_size() -> None:
    digests = tuple(md5_hex(part) for part in (b"aaaa", b"bbbb", b"c"))

    def told(*parts: tuple[int, int, str], known: bool = True) -> list[int]:
        found = newest_parts(PartInfo(number, size, f'"{etag}"', 0.0) for number, size, etag in parts)
        return missing_parts(found, 9, 4, digests if known else ())

    assert told() == [1, 2, 3]
    assert told((1, 4, digests[0]), (3, 1, digests[2])) == [2]
    assert told((1, 4, digests[0]), (2, 4, "other")) == [2, 3]
    assert told((1, 4, "opaque"), (2, 4, "too"), (3, 2, "long")) == [3]
    assert told((1, 4, "any"), (2, 3, digests[1]), (4, 4, "beyond"), known=False) == [2, 3]


def test_of_a_part_that_was_put_twice_the_newest_counts() -> None:
    old, new, other = PartInfo(1, 4, '"a"', 5.0), PartInfo(1, 4, '"b"', 6.0), PartInfo(2, 4, '"c"', 1.0)
    assert newest_parts([new, other, old]) == newest_parts([old, new, other]) == {1: new, 2: other}
