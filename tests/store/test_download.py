"""Downloads by plain GET: resumed, bounded, checked. What a reader gets is the object, or a typed error."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from common.errors import Rejected, Retryable, SetupError
from common.files import atomic_file
from common.store.config import StorageConfig
from common.store.http import HttpClient
from common.store.memory import MemoryStore
from common.store.port import ObjectMissing
from common.store.reader import HttpReader, StoreReader
from common.store.retry import NO_RETRIES
from common.store.s3 import S3Store
from common.units import sha256_hex
from tests.support.faultproxy import FaultProxy
from tests.support.httpserver import Reply, Request, ScriptedServer
from tests.support.storage import QUICK, quick_store

BODY = random.Random(8).randbytes(1_000_000)
HASH = sha256_hex(BODY)


def reader_of(base_url: str, **settings: object) -> HttpReader:
    return HttpReader(base_url, policy=QUICK, **settings)  # type: ignore[arg-type]


@pytest.fixture
def proxy(config: StorageConfig) -> Iterator[FaultProxy]:
    with FaultProxy(config.endpoint) as running:
        yield running


@pytest.fixture
def reader(config: StorageConfig, proxy: FaultProxy, s3: S3Store) -> HttpReader:
    """Reads through the proxy; ``BODY`` is at ``down``."""
    s3.put("down", BODY)
    return reader_of(replace(config, endpoint=proxy.endpoint).public_base_url())


def fetch_code(reader: HttpReader, **arguments: object) -> str:
    with pytest.raises(Rejected) as refusal:
        reader.fetch("down", **({"max_bytes": len(BODY)} | arguments))  # type: ignore[arg-type]
    return refusal.value.code


def test_the_object_comes_whole(reader: HttpReader) -> None:
    assert reader.fetch("down", max_bytes=len(BODY), sha256=HASH, size_bytes=len(BODY)) == BODY


def test_a_truncated_download_is_resumed_where_it_broke_off(reader: HttpReader, proxy: FaultProxy) -> None:
    proxy.cut_replies(400_000, 300_000, 200_000)
    assert reader.fetch("down", max_bytes=len(BODY), sha256=HASH) == BODY
    assert proxy.connections == 4
    assert proxy.down_bytes < len(BODY) + 10_000  # four times headers, and no byte of the body twice


def test_many_cuts_do_not_use_up_the_retries_while_bytes_come(reader: HttpReader, proxy: FaultProxy) -> None:
    proxy.cut_replies(*[150_000] * 7)
    assert reader.fetch("down", max_bytes=len(BODY), sha256=HASH) == BODY


def test_a_link_on_which_nothing_comes_is_given_up(config: StorageConfig, proxy: FaultProxy) -> None:
    proxy.black_hole = True
    http = HttpClient(stall_timeout_s=0.1)
    with pytest.raises(Retryable):
        reader_of(proxy.endpoint, http=http).fetch("x", max_bytes=1)
    assert proxy.connections == QUICK.attempts
    http.close()


def test_a_missing_object(reader: HttpReader) -> None:
    with pytest.raises(ObjectMissing):
        reader.fetch("none", max_bytes=1)


def test_wrong_bytes_and_sizes_are_refused(reader: HttpReader) -> None:
    assert fetch_code(reader, sha256=sha256_hex(b"other")) == "checksum_mismatch"
    assert fetch_code(reader, size_bytes=len(BODY) - 1) == "size_mismatch"
    assert fetch_code(reader, max_bytes=len(BODY) - 1) == "too_large"


def ranged(body: Callable[[], bytes], etag: Callable[[], str | None], cut: int) -> Callable[[Request], Reply]:
    """A server that sends at most ``cut`` bytes of what it announces."""

    def answer(request: Request) -> Reply:
        whole, headers = body(), {"etag": etag()}
        if request.headers.get("if-match", headers["etag"]) != headers["etag"]:
            return Reply(412)
        if "range" not in request.headers:
            return Reply(200, whole[:cut], headers | {"content-length": str(len(whole))})
        start, _, last = request.headers["range"].removeprefix("bytes=").partition("-")
        rest = whole[int(start) : int(last) + 1 if last else None]
        content_range = f"bytes {start}-{int(start) + len(rest) - 1}/{len(whole)}"
        length = {"content-length": str(len(rest)), "content-range": content_range}
        return Reply(206, rest[:cut], headers | length)

    return answer


@pytest.mark.parametrize("has_etag", [True, False])
def test_an_object_that_changes_while_it_is_read_is_noticed(has_etag: bool) -> None:
    versions = iter([b"a" * 100, b"b" * 110])
    bodies: list[bytes] = []

    def body() -> bytes:
        bodies.append(next(versions))
        return bodies[-1]

    def etag() -> str | None:
        return f'"{len(bodies)}"' if has_etag else None

    with ScriptedServer(ranged(body, etag, 60)) as server, pytest.raises(Rejected) as refusal:
        reader_of(server.url()).fetch("x", max_bytes=200)
    assert refusal.value.code == "object_changed"


def test_a_server_that_resumes_correctly_is_followed() -> None:
    with ScriptedServer(ranged(lambda: b"0123456789", lambda: '"v"', 3)) as server:
        policy = replace(QUICK, attempts=5)
        assert HttpReader(server.url(), policy=policy).fetch("x", max_bytes=10) == b"0123456789"
        assert [request.headers.get("range") for request in server.requests[1:]] == ["bytes=3-", "bytes=6-", "bytes=9-"]


def test_of_an_objects_start_only_that_is_read_and_resumed() -> None:
    with ScriptedServer(ranged(lambda: b"0123456789", lambda: '"v"', 3)) as server:
        policy = replace(QUICK, attempts=5)
        found = HttpReader(server.url(), policy=policy).fetch_start("x", start_bytes=7, size_bytes=10)
        assert found == b"0123456"
        asked = [request.headers.get("range") for request in server.requests]
        assert asked == ["bytes=0-6", "bytes=3-6", "bytes=6-6"]


def test_the_start_of_an_object_in_the_store(reader: HttpReader, proxy: FaultProxy, s3: S3Store) -> None:
    assert reader.fetch_start("down", start_bytes=1000, size_bytes=len(BODY)) == BODY[:1000]
    assert StoreReader(s3).fetch_start("down", start_bytes=1000, size_bytes=len(BODY)) == BODY[:1000]
    for other in (reader, StoreReader(s3)):
        with pytest.raises(Rejected, match=r"size_mismatch|too_large"):
            other.fetch_start("down", start_bytes=1000, size_bytes=len(BODY) - 1)


def test_a_server_that_gives_more_than_the_start_is_cut_off() -> None:
    with ScriptedServer(lambda _: Reply(200, b"0123456789")) as server:
        assert reader_of(server.url()).fetch_start("x", start_bytes=4, size_bytes=10) == b"0123"


def test_a_server_that_ignores_ranges_is_read_from_the_start_again() -> None:
    whole = {"content-length": "10"}
    replies = [Reply(200, b"0123456789"), Reply(200, b"0123456", dict(whole)), Reply(200, b"0123", dict(whole))]
    with ScriptedServer(lambda _: replies.pop()) as server:
        assert reader_of(server.url()).fetch("x", max_bytes=10) == b"0123456789"


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        (Reply(403), "object_missing"),
        (Reply(404), "object_missing"),
        (Reply(301, b"", {"location": "http://127.0.0.1:1/"}), "redirected"),
        (Reply(400), "refused"),
        (Reply(206, b"01"), "refused"),
        (Reply(206, b"01", {"content-range": "bytes 5-6/10"}), "refused"),
        (Reply(200, b"x" * 100), "too_large"),
        (Reply(200, b"x" * 100, {"content-length": None}), "too_large"),
        (Reply(200, b"short", {"content-length": None}), "size_mismatch"),
    ],
)
def test_servers_that_misbehave(reply: Reply, code: str) -> None:
    with ScriptedServer(lambda _: reply) as server:
        with pytest.raises(Rejected) as refusal:
            reader_of(server.url()).fetch("x", max_bytes=10, size_bytes=10)
        assert refusal.value.code == code
        assert len(server.requests) == 1


def test_a_busy_server_is_asked_again_when_it_said() -> None:
    replies = [Reply(200, b"here"), Reply(503, b"", {"retry-after": "2"}), Reply(500)]
    waits: list[float] = []
    with ScriptedServer(lambda _: replies.pop()) as server:
        reader = HttpReader(server.url(), sleep=waits.append, uniform=lambda: 0.0)
        assert reader.fetch("x", max_bytes=10) == b"here"
    assert waits == [0.125, 2.0]


def test_keys_are_checked_before_they_become_urls() -> None:
    with pytest.raises(Rejected, match="bad_key"):
        reader_of("http://127.0.0.1:1").fetch("../../etc/passwd", max_bytes=10)


@pytest.mark.parametrize("kind", ["http", "store"])
def test_a_file_is_replaced_whole_or_not_at_all(
    reader: HttpReader, s3: S3Store, proxy: FaultProxy, tmp_path: Path, kind: str
) -> None:
    source = reader if kind == "http" else StoreReader(s3)
    path = tmp_path / "deep" / "snapshot"
    proxy.cut_replies(500_000)
    assert source.fetch_file("down", path, max_bytes=len(BODY), sha256=HASH, size_bytes=len(BODY)) == len(BODY)
    assert path.read_bytes() == BODY
    for wrong in ({"sha256": sha256_hex(b"other")}, {"size_bytes": 3}):
        with pytest.raises(Rejected):
            source.fetch_file("down", path, max_bytes=len(BODY), **wrong)  # type: ignore[arg-type]
    assert path.read_bytes() == BODY
    assert [entry.name for entry in path.parent.iterdir()] == ["snapshot"]


def test_no_room_on_the_disk_is_said_before_the_download(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="no room"), atomic_file(tmp_path / "x", 1 << 60):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_store_reader_repeats_passing_faults_and_refuses_damage() -> None:
    store = MemoryStore()
    store.put("x", b"content")
    for _ in range(3):
        store.fail_next(Retryable("busy"), operation="get")
    reader = StoreReader(store, policy=QUICK)
    assert reader.fetch("x", max_bytes=10, sha256=sha256_hex(b"content")) == b"content"
    store.fail_next(Retryable("busy"))
    with pytest.raises(Retryable):
        StoreReader(store, policy=NO_RETRIES).fetch("x", max_bytes=10)
    store.corrupt("x", lambda body: b"C" + body[1:])
    with pytest.raises(Rejected, match="checksum_mismatch"):
        reader.fetch("x", max_bytes=10, sha256=sha256_hex(b"content"))


def test_a_corrupted_object_in_the_bucket_is_refused(s3: S3Store, config: StorageConfig) -> None:
    damaged = bytearray(BODY)
    damaged[500_000] ^= 1
    quick_store(config).put("down", bytes(damaged))
    assert fetch_code(reader_of(config.public_base_url()), sha256=HASH) == "checksum_mismatch"
