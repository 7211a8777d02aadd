"""A storage that answers as no S3 server does, as a portal or a proxy in front of it may: it counts as away."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from common.errors import RemoteError, Retryable
from common.store.config import StorageConfig
from common.store.port import OutcomeUnknown
from common.store.retry import NO_RETRIES
from common.store.s3 import S3Store
from validator.start import try_bucket

LISTING = b"<ListBucketResult><Contents><Key>x</Key><Size>abc</Size><LastModified>?</LastModified></Contents>"
REPLIES: dict[str, tuple[int, bytes, dict[str, str]]] = {
    "a page": (200, b"<html>please log in</html>", {"content-type": "text/html"}),
    "nothing": (200, b"", {}),
    "json": (200, b'{"a": 1}', {"content-type": "application/json"}),
    "a cut listing": (200, LISTING, {"content-type": "application/xml"}),
    "an odd listing": (200, LISTING + b"</ListBucketResult>", {"content-type": "application/xml"}),
    "no content": (204, b"", {}),
    "a redirect": (301, b"", {"location": "http://127.0.0.1:1/"}),
    "no date": (200, b"x", {"date": "nonsense"}),
}
CALLS: dict[str, Callable[[S3Store], object]] = {
    "get": lambda store: store.get("runs/x", max_bytes=1000),
    "head": lambda store: store.head("runs/x"),
    "list": lambda store: list(store.list("runs/")),
    "put": lambda store: store.put("runs/x", b"a"),
    "multipart": lambda store: store.create_multipart("runs/x"),
}


@contextmanager
def answering(reply: tuple[int, bytes, dict[str, str]]) -> Iterator[StorageConfig]:
    status, body, headers = reply

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("content-length") or 0))
            self.send_response_only(status)
            for name, value in {"date": self.date_time_string(), "content-length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = answer

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield StorageConfig(f"http://127.0.0.1:{server.server_address[1]}", "bucket", "key", "secret")
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("reply", REPLIES.values(), ids=REPLIES)
def test_it_is_never_taken_for_an_answer(
    reply: tuple[int, bytes, dict[str, str]], call: Callable[[S3Store], object]
) -> None:
    with answering(reply) as config, pytest.raises(RemoteError):
        call(S3Store(config, policy=NO_RETRIES))


@pytest.mark.parametrize("reply", REPLIES.values(), ids=REPLIES)
def test_a_conditional_put_has_an_unknown_outcome_then(reply: tuple[int, bytes, dict[str, str]]) -> None:
    with answering(reply) as config, pytest.raises((OutcomeUnknown, Retryable)):
        S3Store(config, policy=NO_RETRIES).put("runs/x", b"a", if_none_match=True)


@pytest.mark.parametrize("kind", ["a page", "nothing", "no content", "no date"])
def test_a_validator_that_starts_then_waits(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("validator.start.S3Store", lambda config: S3Store(config, policy=NO_RETRIES))
    with answering(REPLIES[kind]) as config, pytest.raises(Retryable):
        try_bucket(config)
