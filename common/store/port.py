"""The object store as Brigade sees it: immutable objects, conditional puts, presigned URLs, typed errors.

Invariants that every adapter keeps, and that one contract suite checks on each:

- A put is acknowledged only after the store verified its SHA-256; a reader never sees half an object.
- ``if_none_match`` and ``if_match`` are decided by the store, and no retry hides behind them: a conditional put is
  sent once, so ``PreconditionFailed`` always speaks of somebody's bytes that were there before *this* call.
- An unknown outcome is said (``OutcomeUnknown``), never guessed: the writer re-reads the key.

Calls block; asynchronous callers use ``asyncio.to_thread``. Adapters may be shared between threads.
``s3.py`` holds the boto3 adapter, ``memory.py`` the one for tests, ``multipart.py`` what parts are, ``reader.py`` the
readers over a store and over plain HTTP, ``transfer.py`` uploads over presigned URLs, ``config.py`` where a bucket is
and its keys.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from common.errors import Rejected, Retryable
from common.store.multipart import Md5, PartInfo, UploadInfo
from common.units import Sha256

MAX_KEY_BYTES = 900  # S3 allows 1,024 for the bucket's prefix and the key together
MAX_PRESIGN_S = 7 * 24 * 3600
"""No service signs a URL for longer: the most that ``expires_s`` may be."""
_KEY = re.compile(r"[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*")  # nothing that a URL would have to escape


@dataclass(frozen=True)
class ObjectInfo:
    """What the store says about one object.

    ``etag`` is opaque and in the store's own quotes: it identifies a version for ``if_match`` and is never a content
    hash. ``modified_s`` is the store's clock, in seconds since the epoch, at a grain of one second.
    """

    key: str
    size_bytes: int
    etag: str
    modified_s: float


@dataclass(frozen=True)
class Fetched:
    """Bytes of one object, or of a range of it; ``info.size_bytes`` is the size of the whole object."""

    body: bytes = field(repr=False)
    info: ObjectInfo


@dataclass(frozen=True)
class PresignedPut:
    """A URL that takes exactly one body at exactly one key, with the headers that must go with it.

    Whoever holds the URL may use it, so it stays out of logs and of ``repr``.
    """

    url: str = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)


class ObjectMissing(Rejected):
    """There is no object at this key (or it may not be read, which S3 does not tell apart)."""

    def __init__(self, key: str) -> None:
        super().__init__("object_missing", f"no object at {key}")
        self.key = key


class PreconditionFailed(Rejected):
    """A conditional put lost: the key was taken, or its version was not the expected one. Nothing was written."""

    def __init__(self, key: str) -> None:
        super().__init__("precondition_failed", f"{key} was written by somebody else first")
        self.key = key


class OutcomeUnknown(Retryable):
    """The reply to a conditional put was lost, so it may or may not have been stored: re-read the key."""

    def __init__(self, key: str, cause: str) -> None:
        super().__init__(f"no reply to the conditional put of {key} ({cause}); re-read it to learn who holds it")
        self.key = key


class AccessDenied(Retryable):
    """The store refuses what we asked with our own keys: it is starting, its keys are being changed, or they lack a
    right. It speaks of us and the store, never of the object or of who sent it."""

    def __init__(self, said: str) -> None:
        super().__init__(f"{said}: the storage is starting, or these keys lack a right (Get, Put, Delete, List)")


class ObjectStore(Protocol):
    """One bucket, or one prefix in it, with write credentials.

    Every method may raise ``Retryable`` (429, 5xx, timeouts, no connection; ``AccessDenied`` for a plain 403),
    ``Rejected`` (``bad_key`` and what each method names) and ``SetupError`` (wrong credentials, missing bucket, clock
    off). The rule: only ``Rejected`` can be held against whoever sent an object; whatever follows from our own keys
    is never one.
    """

    def put(self, key: str, body: bytes, *, if_none_match: bool = False, if_match: str | None = None) -> str:
        """Store ``body`` and return the new ETag; the store verifies its SHA-256.

        ``if_none_match`` writes only a key that does not exist, ``if_match`` only over the version with that ETag
        (a missing key counts as another version). Raises ``PreconditionFailed``, and ``OutcomeUnknown`` where a
        conditional put got no reply; ValueError when both conditions are given.
        """
        ...

    def get(self, key: str, *, start: int | None = None, end: int | None = None, max_bytes: int) -> Fetched:
        """Bytes ``start`` (inclusive) to ``end`` (exclusive, cut at the object's end) of one version of the object.

        Raises ``ObjectMissing``, ``Rejected("too_large")`` when more than ``max_bytes`` would come back, and
        ``Rejected("bad_range")`` when a range was asked for and the object ends at or before ``start``.
        """
        ...

    def head(self, key: str) -> ObjectInfo | None:
        """The object's facts, or None when there is none."""
        ...

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Every object whose key starts with ``prefix``, all pages; in the keys' order within one folder only
        (SeaweedFS walks folders, S3 compares whole keys)."""
        ...

    def delete(self, key: str) -> None:
        """Remove the object; a missing one is no error."""
        ...

    def presign_put(self, key: str, *, size_bytes: int, sha256: Sha256, expires_s: int) -> PresignedPut:
        """A URL for one PUT of exactly ``size_bytes`` bytes with this SHA-256, valid for ``expires_s``."""
        ...

    # An object in parts appears whole, when the upload is completed, or never. Whoever holds the store's credentials
    # may go on with anybody's upload.

    def create_multipart(self, key: str) -> str:
        """Begin an upload and return its id. One key may have several at a time."""
        ...

    def list_uploads(self, prefix: str) -> Iterator[UploadInfo]:
        """Every upload under way whose key starts with ``prefix``, all pages, in any order."""
        ...

    def list_parts(self, key: str, upload_id: str) -> tuple[PartInfo, ...]:
        """The parts that the store has. Raises ``UploadMissing``."""
        ...

    def presign_part(
        self, key: str, upload_id: str, *, number: int, size_bytes: int, md5: Md5, expires_s: int
    ) -> PresignedPut:
        """A URL for exactly these bytes as part ``number``, valid for ``expires_s``. A part that is there
        is replaced."""
        ...

    def complete_multipart(self, key: str, upload_id: str, parts: Sequence[PartInfo]) -> str:
        """Make the object of these parts, in order of number, and return its ETag; the other parts are dropped.

        Raises ``UploadMissing`` (also where a first call has done it and its reply was lost: HEAD tells) and
        ``Rejected("bad_parts")`` (one is not there any more, or too small, or of another size than the first).
        """
        ...

    def abort_multipart(self, key: str, upload_id: str) -> None:
        """Drop an upload and its parts; a missing one is no error."""
        ...

    def allow_public_reads(self) -> None:
        """Let everybody GET, and nobody LIST or PUT, under this prefix.

        Raises ``Rejected("not_supported")`` where the service has no bucket policies.
        """
        ...


class ObjectReader(Protocol):
    """Read access without credentials of one's own: what miners have."""

    def fetch(self, key: str, *, max_bytes: int, sha256: Sha256 | None = None, size_bytes: int | None = None) -> bytes:
        """The whole object, checked against the given hash and size; transient faults are retried inside.

        Raises ``ObjectMissing``, ``Rejected`` (``too_large``, ``size_mismatch``, ``checksum_mismatch``,
        ``bad_key``), and ``Retryable`` when the retries are used up.
        """
        ...


class StartReader(ObjectReader, Protocol):
    """An ``ObjectReader`` that need not read an object to its end."""

    def fetch_start(self, key: str, *, start_bytes: int, size_bytes: int) -> bytes:
        """The first ``start_bytes`` (at least 1) of an object of ``size_bytes``, which no hash proves: the caller has
        to. Raises as ``fetch``."""
        ...


class RangeReader(ObjectReader, Protocol):
    """An ``ObjectReader`` that reads parts of objects too."""

    def fetch_range(self, key: str, *, start: int, end: int, size_bytes: int) -> bytes:
        """Bytes [start, end), at least one, of an object of ``size_bytes``, which no hash proves: the caller has to.
        Raises as ``ObjectReader.fetch``."""
        ...


def check_key(key: str) -> str:
    """``key`` itself, if it is plain, relative and short; else ``Rejected("bad_key")``."""
    if len(key) > MAX_KEY_BYTES or not _KEY.fullmatch(key):
        raise Rejected("bad_key", f"{key[:80]!r} is not a plain object key")
    if any(part in (".", "..") for part in key.split("/")):
        raise Rejected("bad_key", f"{key[:80]!r} has a relative part")
    return key


def check_conditions(if_none_match: bool, if_match: str | None) -> bool:
    """Whether a put is conditional; ValueError when it has two conditions."""
    if if_none_match and if_match is not None:
        raise ValueError("a put takes if_none_match or if_match, not both")
    return if_none_match or if_match is not None
