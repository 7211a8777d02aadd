"""Uploads over presigned URLs: what a miner's uplink relies on."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace

import pytest

from common.errors import Rejected, Retryable
from common.store.config import StorageConfig
from common.store.http import HttpClient
from common.store.port import PresignedPut
from common.store.s3 import S3Store
from common.store.transfer import upload
from common.units import sha256_hex
from tests.support.faultproxy import FaultProxy
from tests.support.httpserver import Reply, ScriptedServer
from tests.support.storage import QUICK, quick_store

BODY = random.Random(7).randbytes(700_000)


@pytest.fixture
def proxy(config: StorageConfig) -> Iterator[FaultProxy]:
    with FaultProxy(config.endpoint) as running:
        yield running


@pytest.fixture
def presigned(config: StorageConfig, proxy: FaultProxy) -> PresignedPut:
    """For ``BODY`` at key ``up``, by way of the proxy."""
    store = quick_store(replace(config, endpoint=proxy.endpoint))
    return store.presign_put("up", size_bytes=len(BODY), sha256=sha256_hex(BODY), expires_s=600)


def test_progress_rises_to_the_whole_body(s3: S3Store, presigned: PresignedPut, http: HttpClient) -> None:
    sent: list[int] = []
    upload(presigned.url, presigned.headers, BODY, http=http, on_progress=sent.append)
    assert sent[0] == 0
    assert sent[-1] == len(BODY)
    assert sent == sorted(sent)
    assert len(sent) > 5
    assert s3.get("up", max_bytes=len(BODY)).body == BODY


def test_cut_connections_and_lost_replies_are_repeated(
    s3: S3Store, presigned: PresignedPut, http: HttpClient, proxy: FaultProxy
) -> None:
    proxy.cut_requests(300_000, 1_000)
    proxy.lose_replies()
    upload(presigned.url, presigned.headers, BODY, http=http, policy=QUICK)
    assert proxy.connections == 4
    assert s3.get("up", max_bytes=len(BODY)).body == BODY


def test_the_retries_end(presigned: PresignedPut, http: HttpClient, proxy: FaultProxy) -> None:
    waits: list[float] = []
    proxy.cut_requests(*[1_000] * 9)
    with pytest.raises(Retryable):
        upload(presigned.url, presigned.headers, BODY, http=http, sleep=waits.append, uniform=lambda: 1.0)
    assert waits == [0.25, 0.5, 1.0, 2.0]
    assert proxy.connections == 5


def test_a_black_hole_is_retryable(presigned: PresignedPut, proxy: FaultProxy) -> None:
    proxy.black_hole = True
    http = HttpClient(stall_timeout_s=0.2)
    with pytest.raises(Retryable) as failure:
        upload(presigned.url, presigned.headers, BODY, http=http, policy=replace(QUICK, attempts=2))
    assert "Signature" not in str(failure.value)  # the URL opens the key to whoever reads the log
    http.close()


def test_a_throttled_link_carries_the_body(
    s3: S3Store, presigned: PresignedPut, http: HttpClient, proxy: FaultProxy
) -> None:
    proxy.link.up.rate_bps = 32e6
    proxy.latency_s = 0.001
    upload(presigned.url, presigned.headers, BODY, http=http)
    assert proxy.up_bytes >= len(BODY)
    assert s3.get("up", max_bytes=len(BODY)).body == BODY


def test_other_bytes_are_refused_and_not_repeated(
    s3: S3Store, presigned: PresignedPut, http: HttpClient, proxy: FaultProxy
) -> None:
    for other, code in ((bytes(len(BODY)), "checksum_mismatch"), (BODY + b"x", "size_mismatch")):
        with pytest.raises(Rejected) as refusal:
            upload(presigned.url, presigned.headers, other, http=http, policy=QUICK)
        assert refusal.value.code == code
    assert proxy.connections == 1
    assert s3.head("up") is None


def test_an_expired_url_is_told_by_the_servers_clock(
    s3: S3Store, http: HttpClient, signed_in_the_past: Callable[[], AbstractContextManager[None]]
) -> None:
    with signed_in_the_past():
        presigned = s3.presign_put("up", size_bytes=4, sha256=sha256_hex(b"late"), expires_s=60)
    with pytest.raises(Rejected) as refusal:
        upload(presigned.url, presigned.headers, b"late", http=http)
    assert refusal.value.code == "url_expired"


def test_an_exception_of_the_progress_report_ends_the_upload(presigned: PresignedPut, http: HttpClient) -> None:
    class DeadlineReached(Exception):
        pass

    def stop(sent_bytes: int) -> None:
        if sent_bytes > 100_000:
            raise DeadlineReached

    with pytest.raises(DeadlineReached):
        upload(presigned.url, presigned.headers, BODY, http=http, on_progress=stop)


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        (Reply(302, b"", {"location": "http://127.0.0.1:1/"}), "redirected"),
        (Reply(403, b"<Code>SignatureDoesNotMatch</Code>"), "url_refused"),
        (Reply(400, b"<Code>XAmzContentChecksumMismatch</Code>"), "checksum_mismatch"),
        (Reply(400, b"<Code>EntityTooLarge</Code>"), "size_mismatch"),
        (Reply(413), "size_mismatch"),
        (Reply(204), "upload_refused"),
        (Reply(418, b"\xff" * 100_000), "upload_refused"),
        (Reply(200, b"", {"x-amz-checksum-sha256": "b3RoZXI="}), "checksum_mismatch"),
    ],
)
def test_only_a_confirmed_success_counts(http: HttpClient, reply: Reply, code: str) -> None:
    headers = {"x-amz-checksum-sha256": "bWluZQ=="}
    with ScriptedServer(lambda _: reply) as server:
        with pytest.raises(Rejected) as refusal:
            upload(server.url("/x"), headers, b"body", http=http, policy=QUICK)
        assert refusal.value.code == code
        assert len(server.requests) == 1


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_passing_errors_are_repeated_until_it_works(http: HttpClient, status: int) -> None:
    replies = [Reply(200, b"", {"etag": '"e"'}), Reply(status, b"<Code>SlowDown</Code>", {"retry-after": "3"})]
    waits: list[float] = []
    with ScriptedServer(lambda _: replies.pop()) as server:
        assert upload(server.url("/x"), {}, b"body", http=http, sleep=waits.append) == '"e"'
    assert waits == [3.0]


@pytest.mark.parametrize(
    ("url", "headers", "code"),
    [
        ("not a url", {}, "bad_url"),
        ("ftp://host/x", {}, "bad_url"),
        ("http://[::1", {}, "bad_url"),
        ("http://127.0.0.1:1/x", {"a": "b\r\nhost: evil"}, "bad_headers"),
        ("http://127.0.0.1:1/x", {"a b": "c"}, "bad_headers"),
        ("http://127.0.0.1:1/x", {"a": "ü"}, "bad_headers"),
    ],
)
def test_a_url_or_headers_that_are_none(http: HttpClient, url: str, headers: dict[str, str], code: str) -> None:
    with pytest.raises(Rejected) as refusal:
        upload(url, headers, b"body", http=http, policy=QUICK)
    assert refusal.value.code == code
