"""The S3 adapter against a real server: who may do what, and what a writer learns when things go wrong."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace

import pytest
import urllib3

from common.errors import OperatorError, Rejected, Retryable, SetupError
from common.store.config import StorageConfig
from common.store.port import AccessDenied, OutcomeUnknown, PreconditionFailed
from common.store.s3 import S3Store
from common.units import sha256_hex
from tests.support.faultproxy import FaultProxy
from tests.support.httpserver import Reply, Request, ScriptedServer
from tests.support.storage import fresh_prefix, quick_store


@pytest.fixture
def proxy(config: StorageConfig) -> Iterator[FaultProxy]:
    with FaultProxy(config.endpoint) as running:
        yield running


def through(proxy: FaultProxy, config: StorageConfig, **settings: float) -> S3Store:
    return quick_store(replace(config, endpoint=proxy.endpoint), **settings)  # type: ignore[arg-type]


def answer(status: int, code: str = "", **headers: str | None) -> Callable[[Request], Reply]:
    body = f"<Error><Code>{code}</Code></Error>".encode() if code else b""
    return lambda _: Reply(status, body, dict(headers))


def test_wrong_secret_and_unknown_key_end_in_one_line(config: StorageConfig) -> None:
    for wrong in (replace(config, secret_key="wrong"), replace(config, access_key="unknown")):
        store = quick_store(wrong)
        for use in (lambda s=store: s.put("x", b"x"), lambda s=store: s.head("x"), lambda s=store: list(s.list(""))):
            with pytest.raises(SetupError, match="check the access key and the secret key") as failure:
                use()
            assert "\n" not in str(failure.value)


def test_a_refusal_of_our_own_keys_is_never_held_against_an_object(config: StorageConfig) -> None:
    """A server that starts, or whose keys are changed, answers so; a HEAD's answer has no words."""

    def refuse(request: Request) -> Reply:
        return answer(403, "" if request.method == "HEAD" else "AccessDenied")(request)

    with ScriptedServer(refuse) as bad:
        store = quick_store(replace(config, endpoint=bad.url("")))
        for use in (
            lambda: store.put("x", b"x"),
            lambda: store.put("x", b"x", if_none_match=True),
            lambda: store.get("x", max_bytes=1),
            lambda: store.head("x"),
            lambda: list(store.list("")),
        ):
            with pytest.raises(AccessDenied, match="these keys lack a right"):
                use()


def test_a_missing_bucket_ends_in_one_line_and_is_not_created(config: StorageConfig) -> None:
    store = quick_store(replace(config, bucket="mistyped"))
    for use in (lambda: store.put("x", b"x"), lambda: store.get("x", max_bytes=1), lambda: list(store.list(""))):
        with pytest.raises(SetupError, match="no such bucket"):
            use()


def test_a_clock_that_is_off_ends_in_one_line(
    s3: S3Store, signed_in_the_past: Callable[[], AbstractContextManager[None]]
) -> None:
    with signed_in_the_past(), pytest.raises(SetupError, match="clock is off"):
        s3.put("x", b"x")
    assert abs(s3.server_clock_skew_s()) < 30


def test_secrets_stay_out_of_repr_and_errors(config: StorageConfig) -> None:
    store = quick_store(replace(config, access_key="AKIDWRONG", secret_key="very-secret"))
    with pytest.raises(SetupError) as failure:
        store.put("x", b"x")
    for text in (repr(store.config), str(failure.value), repr(failure.value)):
        assert "very-secret" not in text
        assert "AKIDWRONG" not in text


def test_stores_under_two_prefixes_do_not_meet(config: StorageConfig) -> None:
    one, two = quick_store(config), quick_store(fresh_prefix(config))
    one.put("x", b"one")
    assert two.head("x") is None
    assert list(two.list("")) == []
    assert [info.key for info in one.list("")] == ["x"]


def test_outsiders_read_and_do_nothing_else(config: StorageConfig, s3: S3Store) -> None:
    s3.put("runs/x", b"public")
    url = f"{config.public_base_url()}/runs/x"

    def ask(method: str, url: str, body: bytes | None = None) -> int:
        return urllib3.request(method, url, body=body, retries=False, redirect=False).status

    assert urllib3.request("GET", url, retries=False).data == b"public"
    assert ask("GET", f"{config.public_base_url()}/runs/none") in (403, 404)
    bucket = f"{config.endpoint}/{config.bucket}"
    assert ask("GET", f"{bucket}?list-type=2") == 403
    assert ask("GET", f"{bucket}/") == 403
    assert ask("PUT", url, b"mine") == 403
    assert ask("DELETE", url) == 403
    assert ask("GET", f"{bucket}?policy") == 403
    assert s3.get("runs/x", max_bytes=10).body == b"public"


def test_public_reads_of_one_prefix_keep_the_other_statements(config: StorageConfig) -> None:
    other = fresh_prefix(config)
    for one in (config, other, config):
        quick_store(one).allow_public_reads()
    policy = quick_store(config)._policy_statements()
    resources = [resource for statement in policy for resource in _as_list(statement["Resource"])]
    for prefix in ("", f"{config.prefix}/", f"{other.prefix}/"):  # the first: the whole bucket, from the server's start
        assert resources.count(f"arn:aws:s3:::{config.bucket}/{prefix}*") == 1


def _as_list(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


@pytest.mark.parametrize(
    ("body", "headers", "refusal"),
    [
        (b"different", {}, 400),
        (b"longer than announced", {}, 403),
        (b"short", {}, 403),
        (b"announced", {"x-amz-checksum-sha256": None}, 403),
        (b"announced", {"x-amz-checksum-sha256": "AAAA"}, 403),
    ],
)
def test_the_server_itself_refuses_what_was_not_announced(
    s3: S3Store, body: bytes, headers: dict[str, str | None], refusal: int
) -> None:
    presigned = s3.presign_put("up/x", size_bytes=9, sha256=sha256_hex(b"announced"), expires_s=60)
    sent = {name: value for name, value in ({**presigned.headers, **headers}).items() if value is not None}
    del sent["content-length"]
    reply = urllib3.request("PUT", presigned.url, body=body, headers=sent, retries=False)
    assert reply.status == refusal
    assert s3.head("up/x") is None


def test_a_lost_reply_to_a_conditional_put_is_an_unknown_outcome(
    s3: S3Store, config: StorageConfig, proxy: FaultProxy
) -> None:
    store = through(proxy, config)
    proxy.lose_replies()
    with pytest.raises(OutcomeUnknown) as unknown:
        store.put("slot", b"mine", if_none_match=True)
    assert unknown.value.key == "slot"
    assert proxy.connections == 1  # no retry hid behind it
    assert s3.get("slot", max_bytes=10).body == b"mine"  # re-reading shows that we hold it


def test_a_lost_reply_to_an_idempotent_put_is_repeated(config: StorageConfig, proxy: FaultProxy) -> None:
    store = through(proxy, config)
    proxy.lose_replies(2)
    store.put("x", b"body")
    assert store.get("x", max_bytes=10).body == b"body"


def test_a_truncated_answer_is_repeated(s3: S3Store, config: StorageConfig, proxy: FaultProxy) -> None:
    body = bytes(200_000)
    s3.put("x", body)
    proxy.cut_replies(50_000, 120_000)
    assert through(proxy, config).get("x", max_bytes=len(body)).body == body


def test_a_server_that_does_not_answer_is_retryable(config: StorageConfig, proxy: FaultProxy) -> None:
    proxy.black_hole = True
    store = through(proxy, config, read_timeout_s=0.2, attempts=2)
    with pytest.raises(Retryable):
        store.get("x", max_bytes=1)
    with pytest.raises(OutcomeUnknown):
        store.put("x", b"x", if_none_match=True)


def test_a_refused_connection_is_no_unknown_outcome(config: StorageConfig) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        store = quick_store(replace(config, endpoint=f"http://127.0.0.1:{closed.getsockname()[1]}"))
        with pytest.raises(Retryable) as failure:
            store.put("x", b"x", if_none_match=True)
    assert not isinstance(failure.value, OutcomeUnknown)


@pytest.mark.parametrize(
    ("status", "code", "error"),
    [
        (409, "ConditionalRequestConflict", PreconditionFailed),
        (412, "PreconditionFailed", PreconditionFailed),
        (404, "NoSuchKey", PreconditionFailed),  # AWS's answer to If-Match on a missing key
        (500, "InternalError", OutcomeUnknown),
        (503, "SlowDown", OutcomeUnknown),
        (404, "NoSuchBucket", SetupError),
        (400, "BadDigest", Rejected),
    ],
)
def test_what_other_services_answer_to_a_conditional_put(
    config: StorageConfig, status: int, code: str, error: type[Exception]
) -> None:
    with ScriptedServer(answer(status, code)) as server:
        store = quick_store(replace(config, endpoint=server.url()))
        with pytest.raises(error):
            store.put("x", b"x", if_match='"etag"')
        assert len(server.requests) == 1


def test_throttling_is_retried_and_the_wait_it_asks_for_is_kept(config: StorageConfig) -> None:
    waits: list[float] = []
    with ScriptedServer(answer(429, "TooManyRequests", **{"retry-after": "7"})) as server:
        store = S3Store(replace(config, endpoint=server.url()), sleep=waits.append, uniform=lambda: 0.0)
        with pytest.raises(Retryable) as throttled:
            store.put("x", b"x")
        assert throttled.value.retry_after_s == 7
        assert waits == [7.0] * 4
        assert len(server.requests) == 5


def test_a_service_without_policies_says_not_supported(config: StorageConfig) -> None:
    with ScriptedServer(answer(501, "NotImplemented")) as server:
        store = quick_store(replace(config, endpoint=server.url()))
        with pytest.raises(Rejected, match="not_supported"):
            store.allow_public_reads()


def test_a_service_without_ranges_is_noticed(config: StorageConfig) -> None:
    headers = {"etag": '"e"', "last-modified": "Tue, 01 Dec 2026 10:00:00 GMT"}
    with ScriptedServer(lambda _: Reply(200, b"0123456789", dict(headers))) as server:
        store = quick_store(replace(config, endpoint=server.url()))
        with pytest.raises(Rejected, match="range_ignored"):
            store.get("x", start=2, end=4, max_bytes=10)


@pytest.mark.parametrize(
    "change",
    [
        {"endpoint": "localhost:9000"},
        {"endpoint": "http://host/path"},
        {"bucket": "Not A Bucket"},
        {"prefix": "/x"},
        {"prefix": "x/"},
        {"secret_key": ""},
    ],
)
def test_a_configuration_that_cannot_work_is_refused(config: StorageConfig, change: dict[str, str]) -> None:
    with pytest.raises(OperatorError):
        replace(config, **change)


def test_a_presigned_url_has_a_bounded_life(s3: S3Store) -> None:
    with pytest.raises(ValueError, match="presigned"):
        s3.presign_put("x", size_bytes=1, sha256=sha256_hex(b"x"), expires_s=8 * 24 * 3600)
