"""Uploads over presigned URLs: one PUT of one body, with progress, retried, and believed only when confirmed.

Invariant: success means that the store said 200 for exactly these bytes: the URL is signed for their length and
SHA-256, which the store checks, and where its answer names a checksum or the caller expects an ETag, they agree.
A PUT of the same bytes to a content-addressed key is idempotent, so passing faults are simply repeated.
"""

from __future__ import annotations

import random
import re
import time
from calendar import timegm
from collections.abc import Callable, Iterator, Mapping
from email.utils import parsedate_to_datetime
from urllib.parse import parse_qs, urlsplit

import urllib3

from common.errors import BrigadeError, Rejected, Retryable
from common.store.http import BLOCK_BYTES, HttpClient, read_error, read_to_end
from common.store.replies import ErrorReply
from common.store.retry import RetryPolicy, Sleep, Uniform, with_retries

_HEADER_NAME = re.compile(r"[A-Za-z0-9-]{1,100}")
Progress = Callable[[int], None]
_CHECKSUM = "x-amz-checksum-sha256"
_SIZE_CODES = ("IncompleteBody", "EntityTooLarge", "EntityTooSmall", "MissingContentLength")


def upload(
    url: str,
    headers: Mapping[str, str],
    body: bytes | memoryview,
    *,
    http: HttpClient,
    subject: str = "the upload",
    on_progress: Progress = lambda sent_bytes: None,
    policy: RetryPolicy | None = None,
    sleep: Sleep = time.sleep,
    uniform: Uniform = random.random,
) -> str:
    """PUT ``body`` to a presigned ``url`` with the ``headers`` it was signed for, and return the object's ETag.

    ``on_progress`` gets the bytes handed to the connection so far in this attempt (a retry starts again from a small
    number); an exception that it raises ends the upload. Raises ``Rejected`` with ``checksum_mismatch`` (other
    bytes than announced), ``size_mismatch``, ``url_expired``, ``url_refused``, ``bad_url`` or ``bad_headers``;
    ``Retryable`` when the retries are used up.
    """
    announced = _plain_headers(headers, subject)
    if announced.get("content-length", str(len(body))) != str(len(body)):
        raise Rejected("size_mismatch", f"{subject}: {len(body)} bytes, announced {announced['content-length']}")
    announced["content-length"] = str(len(body))

    def once() -> str:
        return _put_once(url, announced, memoryview(body), http, subject, on_progress)

    return with_retries(once, policy or RetryPolicy(), sleep=sleep, uniform=uniform)


def _put_once(
    url: str,
    headers: Mapping[str, str],
    body: memoryview,
    http: HttpClient,
    subject: str,
    on_progress: Progress,
) -> str:
    blocks = _blocks(body, on_progress)
    reply = http.request("PUT", url, headers=headers, subject=subject, body=blocks)
    if reply.status != 200:
        server_s = date_s(reply)
        raise upload_error(read_error(reply), url, server_s, subject)
    read_to_end(reply)
    return _confirm(reply, headers, subject)


def _plain_headers(headers: Mapping[str, str], subject: str) -> dict[str, str]:
    """The headers in lower case; they come from another machine, so nothing that could split a request passes."""
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name) or not (value.isascii() and value.isprintable()):
            raise Rejected("bad_headers", f"{subject}: the headers that came with the URL are not plain")
    return {name.lower(): value for name, value in headers.items()}


def _confirm(reply: urllib3.BaseHTTPResponse, headers: Mapping[str, str], subject: str) -> str:
    """The ETag of a 200 that fits what was sent."""
    etag = reply.headers.get("etag", "")
    stored = reply.headers.get(_CHECKSUM)
    if stored is not None and headers.get(_CHECKSUM, stored) != stored:
        raise Rejected("checksum_mismatch", f"{subject}: the store holds other bytes than were sent")
    return etag


def _blocks(body: memoryview, on_progress: Progress) -> Iterator[bytes]:
    """The body in blocks; progress is told when the block before was taken."""
    for start in range(0, len(body), BLOCK_BYTES):
        on_progress(start)
        yield bytes(body[start : start + BLOCK_BYTES])
    on_progress(len(body))


def upload_error(reply: ErrorReply, url: str, server_s: float | None, subject: str) -> BrigadeError:
    """What a refused presigned PUT means. ``server_s`` is the reply's own Date, so that our clock has no say."""
    said = f"{subject}: the store answers {reply.status} {reply.code}".rstrip()
    if reply.code in ("BadDigest", "InvalidDigest", "XAmzContentChecksumMismatch"):
        return Rejected("checksum_mismatch", f"{subject}: these are not the announced bytes")
    if reply.code in _SIZE_CODES or reply.status in (411, 413):
        return Rejected("size_mismatch", said)
    if reply.is_passing():
        return Retryable(said, reply.retry_after_s)
    if reply.status in (400, 401, 403) and (reply.code == "ExpiredRequest" or _has_expired(url, server_s)):
        return Rejected("url_expired", f"{subject}: the upload URL has expired")
    if reply.status in (400, 401, 403):
        return Rejected("url_refused", f"{said}: the URL is not for this request")
    return Rejected("upload_refused", said)


def _has_expired(url: str, server_s: float | None) -> bool:
    """Whether the SigV4 URL's life was over at the server's time."""
    try:
        query = parse_qs(urlsplit(url).query)
        signed_s = timegm(time.strptime(query["X-Amz-Date"][0], "%Y%m%dT%H%M%SZ"))
        return server_s is not None and server_s >= signed_s + int(query["X-Amz-Expires"][0])
    except (KeyError, ValueError):
        return False


def date_s(reply: urllib3.BaseHTTPResponse) -> float | None:
    """The server's clock as its reply tells it, in whole seconds since the epoch; None where it does not."""
    try:
        return parsedate_to_datetime(reply.headers.get("date", "")).timestamp()
    except (TypeError, ValueError, OverflowError):
        return None
