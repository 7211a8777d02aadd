"""One download over plain HTTP: bounded, resumed where it broke off, and checked before anybody sees a byte of it.

Invariants: never more than ``max_bytes`` are accepted, whatever the server announces; a resumed download joins only
bytes of one version (If-Match with the first reply's ETag, and the size must stay the same); what comes out has the
expected size and SHA-256. Of a part of an object only the object's size is checked. The state lives in ``_Download``;
an attempt is one request.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Protocol

import urllib3

from common.errors import Rejected, Retryable
from common.store.http import BLOCK_BYTES, HttpClient, lost, read_error
from common.store.port import ObjectMissing
from common.store.retry import RetryPolicy, Sleep, Uniform
from common.units import Sha256

_CONTENT_RANGE = re.compile(r"bytes (\d{1,15})-(\d{1,15})/(\d{1,15})")
_READ_BYTES = 4 * BLOCK_BYTES


@dataclass(frozen=True)
class Expected:
    """What the reader knows of the object beforehand."""

    key: str
    max_bytes: int
    sha256: Sha256 | None = None
    size_bytes: int | None = None
    start_bytes: int | None = None
    """Only so many bytes, from ``first_byte`` on, are wanted; None: all of them."""
    first_byte: int = 0

    def check_size(self, total_bytes: int) -> None:
        """Raise ``too_large`` or ``size_mismatch`` for an object of ``total_bytes``."""
        if total_bytes > self.max_bytes:
            raise Rejected("too_large", f"{self.key} has {total_bytes} bytes, more than the {self.max_bytes} allowed")
        if self.size_bytes is not None and total_bytes != self.size_bytes:
            raise Rejected("size_mismatch", f"{self.key} has {total_bytes} bytes, expected {self.size_bytes}")

    def check_hash(self, found: str) -> None:
        """Raise ``checksum_mismatch`` unless ``found`` is the expected SHA-256."""
        if self.sha256 is not None and found != self.sha256:
            raise Rejected("checksum_mismatch", f"{self.key} has SHA-256 {found[:16]}…, expected {self.sha256[:16]}…")


class Sink(Protocol):
    """Where bytes go; ``restart`` forgets those so far."""

    def write(self, block: bytes) -> object: ...

    def restart(self) -> None: ...


class MemorySink:
    """Collects the bytes."""

    def __init__(self) -> None:
        self.body = bytearray()

    def write(self, block: bytes) -> None:
        self.body += block

    def restart(self) -> None:
        self.body.clear()


def download(
    http: HttpClient, url: str, expected: Expected, sink: Sink, *, policy: RetryPolicy, sleep: Sleep, uniform: Uniform
) -> int:
    """Fetch ``url`` into ``sink`` and return the size. A failure counts against ``policy`` only if no new block came.

    Raises ObjectMissing (403 and 404 alike), Rejected (too_large, size_mismatch, checksum_mismatch, object_changed,
    redirected, refused), Retryable.
    """
    state = _Download(http, url, expected, sink)
    failures = 0
    while True:
        before = state.most_bytes
        try:
            return state.attempt()
        except Retryable as fault:
            failures = 1 if state.most_bytes >= before + BLOCK_BYTES else failures + 1
            if failures >= policy.attempts:
                raise
            sleep(policy.wait_s(failures, fault.retry_after_s, uniform))


class _Download:
    def __init__(self, http: HttpClient, url: str, expected: Expected, sink: Sink) -> None:
        self._http = http
        self._url = url
        self._expected = expected
        self._sink = sink
        self._etag: str | None = None
        self._total_bytes: int | None = None
        self._restart()
        self.most_bytes = 0  # ever held: a server that ignores ranges makes no progress by starting over

    def attempt(self) -> int:
        """One request from where the last one broke off; returns the size when the object is whole and right."""
        reply = self._http.request("GET", self._url, headers=self._headers(), subject=self._expected.key)
        if reply.status not in (200, 206):
            self._raise_status(reply)
        try:
            self._accept_headers(reply)
            self._read(reply)
        finally:
            reply.close()
        return self._finish()

    def _finish(self) -> int:
        wanted_bytes = self._expected.start_bytes or self._total_bytes
        if wanted_bytes is not None and self._received_bytes < wanted_bytes:
            raise self._broken(f"ended after {self._received_bytes} of {wanted_bytes} bytes")
        if self._expected.start_bytes is None:
            self._expected.check_size(self._received_bytes)
            self._expected.check_hash(self._hash.hexdigest())
        return self._received_bytes

    def _headers(self) -> dict[str, str]:
        headers = {"accept-encoding": "identity"}
        wanted_bytes, first = self._expected.start_bytes, self._expected.first_byte
        last = "" if wanted_bytes is None else first + wanted_bytes - 1
        if self._received_bytes or wanted_bytes:
            headers["range"] = f"bytes={first + self._received_bytes}-{last}"
        if self._received_bytes and self._etag:
            headers["if-match"] = self._etag
        return headers

    def _accept_headers(self, reply: urllib3.BaseHTTPResponse) -> None:
        total_bytes = self._resumed_total(reply) if reply.status == 206 else self._fresh_total(reply)
        etag = reply.headers.get("etag")
        if self._received_bytes and (etag != self._etag or total_bytes != self._total_bytes):
            raise Rejected("object_changed", f"{self._expected.key} was replaced while it was being read")
        self._etag, self._total_bytes = etag, total_bytes
        if total_bytes is not None:
            self._expected.check_size(total_bytes)

    def _fresh_total(self, reply: urllib3.BaseHTTPResponse) -> int | None:
        """A whole object, asked for or not: begin again with it."""
        self._restart()
        self._skip_bytes = self._expected.first_byte
        length = reply.headers.get("content-length", "")
        return int(length) if length.isascii() and length.isdigit() and len(length) < 16 else None

    def _resumed_total(self, reply: urllib3.BaseHTTPResponse) -> int:
        match = _CONTENT_RANGE.fullmatch(reply.headers.get("content-range", ""))
        if match is None or int(match[1]) != self._expected.first_byte + self._received_bytes:
            raise Rejected("refused", f"{self._expected.key}: the server sent another range than was asked for")
        return int(match[3])

    def _read(self, reply: urllib3.BaseHTTPResponse) -> None:
        try:
            while not self._has_start() and (block := reply.read1(_READ_BYTES, decode_content=False)):
                self._take(block)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise lost(self._expected.key, self._url, error) from error

    def _has_start(self) -> bool:
        """Whether all that is wanted of the object is there, though the server may have more to say."""
        wanted_bytes = self._expected.start_bytes
        return wanted_bytes is not None and self._received_bytes >= wanted_bytes

    def _take(self, block: bytes) -> None:
        skipped = min(self._skip_bytes, len(block))
        self._skip_bytes -= skipped
        block = block[skipped:]
        if self._expected.start_bytes is not None:
            block = block[: self._expected.start_bytes - self._received_bytes]
        self._received_bytes += len(block)
        limit_bytes = self._expected.max_bytes if self._total_bytes is None else self._total_bytes
        if self._received_bytes > limit_bytes:
            raise Rejected("too_large", f"{self._expected.key} does not end after {limit_bytes} bytes")
        self._hash.update(block)
        self._sink.write(block)
        self.most_bytes = max(self.most_bytes, self._received_bytes)

    def _restart(self) -> None:
        self._received_bytes = self._skip_bytes = 0
        self._hash = hashlib.sha256()
        self._sink.restart()

    def _raise_status(self, reply: urllib3.BaseHTTPResponse) -> None:
        facts = read_error(reply)
        key = self._expected.key
        if facts.status in (403, 404):
            raise ObjectMissing(key)
        if facts.status == 412 or (facts.status == 416 and self._received_bytes):
            raise Rejected("object_changed", f"{key} was replaced while it was being read")
        if facts.is_passing():
            raise Retryable(f"{key}: the server answers {facts.status} {facts.code}".rstrip(), facts.retry_after_s)
        raise Rejected("refused", f"{key}: the server answers {facts.status} {facts.code}".rstrip())

    def _broken(self, what: str) -> Retryable:
        return Retryable(f"{self._expected.key} {what}")
