"""An object store in memory that behaves as S3 does, with faults on command. For tests.

It keeps the port's contract, S3's surprises included: the ETag is a function of the body (so the same bytes written
again have the same ETag), a range beyond the end is an error, and a presigned URL takes the same body any number of
times until it expires. Parts have R2's rules, the strictest. Faults are armed one at a time and named by what a test
wants to see.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from common.clock import Clock, SystemClock
from common.errors import Rejected, Retryable
from common.store.memory_parts import UploadTable
from common.store.multipart import MIN_PART_BYTES, Md5, PartInfo, UploadInfo, UploadMissing, md5_hex
from common.store.port import (
    Fetched,
    ObjectInfo,
    ObjectMissing,
    OutcomeUnknown,
    PreconditionFailed,
    PresignedPut,
    check_conditions,
    check_key,
)
from common.units import Sha256, sha256_hex


@dataclass(frozen=True)
class _Object:
    body: bytes
    info: ObjectInfo


@dataclass(frozen=True)
class _Grant:
    """What a presigned URL allows: a put of one body, as an object or as a part of one."""

    key: str
    expires_at_s: float
    size_bytes: int
    headers: Mapping[str, str]
    """What must be sent with the body: its hash, under the name that S3 has for it."""
    upload_id: str = ""
    number: int = 0


class MemoryStore:
    """``ObjectStore`` over a dict. ``honours_conditions=False`` makes the kind of server that the probe must refuse,
    ``opaque_etags`` one whose parts' ETags are no MD5, and ``min_part_bytes`` one for tests with small parts."""

    def __init__(
        self,
        clock: Clock | None = None,
        *,
        honours_conditions: bool = True,
        min_part_bytes: int = MIN_PART_BYTES,
        opaque_etags: bool = False,
    ) -> None:
        self._clock = clock or SystemClock()
        self._honours_conditions = honours_conditions
        self._objects: dict[str, _Object] = {}
        self._uploads = UploadTable(min_part_bytes, opaque_etags)
        self._grants: dict[str, _Grant] = {}
        self._lock = threading.RLock()
        self._faults: list[tuple[str, str, Exception]] = []
        self._lost_replies: list[str] = []
        self.public_reads = False
        # Called as (operation, key) before each operation and outside the lock, so that a test can let another
        # writer in between, count calls, or raise.
        self.before: Callable[[str, str], None] | None = None

    # The faults.

    def fail_next(self, error: Exception, *, operation: str = "", key_part: str = "") -> None:
        """The next matching call raises ``error`` and changes nothing. Faults queue up; empty matches anything."""
        self._faults.append((operation, key_part, error))

    def lose_next_reply(self, *, key_part: str = "") -> None:
        """The next put of a matching key, or completion of its upload, is done, but its caller sees the connection
        die."""
        self._lost_replies.append(key_part)

    def corrupt(self, key: str, change: Callable[[bytes], bytes]) -> None:
        """Change stored bytes behind everybody's back: same ETag, same time."""
        with self._lock:
            found = self._find(key)
            body = change(found.body)
            info = ObjectInfo(key, len(body), found.info.etag, found.info.modified_s)
            self._objects[key] = _Object(body, info)

    # The port.

    def put(self, key: str, body: bytes, *, if_none_match: bool = False, if_match: str | None = None) -> str:
        conditional = check_conditions(if_none_match, if_match)
        self._enter("put", key)
        with self._lock:
            if self._honours_conditions:
                self._check_condition(key, if_none_match, if_match)
            etag = self._store(key, bytes(body))
            if self._take_lost_reply(key):
                cause = "the connection was reset"
                raise OutcomeUnknown(key, cause) if conditional else Retryable(f"put of {key}: {cause}")
        return etag

    def get(self, key: str, *, start: int | None = None, end: int | None = None, max_bytes: int) -> Fetched:
        first = start or 0
        if first < 0 or (end is not None and end <= first):
            raise ValueError(f"no bytes in the range {start}..{end}")
        self._enter("get", key)
        with self._lock:
            found = self._find(key)
        if (start is not None or end is not None) and first >= len(found.body):
            raise Rejected("bad_range", f"{key} has only {len(found.body)} bytes")
        body = found.body[first:end]
        if len(body) > max_bytes:
            raise Rejected("too_large", f"{key} has {len(body)} bytes, more than the {max_bytes} allowed")
        return Fetched(body, found.info)

    def head(self, key: str) -> ObjectInfo | None:
        self._enter("head", key)
        with self._lock:
            found = self._objects.get(key)
        return found.info if found else None

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        self._enter("list", prefix, is_key=False)
        with self._lock:
            infos = [found.info for key, found in self._objects.items() if key.startswith(prefix)]
        return iter(sorted(infos, key=lambda info: info.key))

    def delete(self, key: str) -> None:
        self._enter("delete", key)
        with self._lock:
            self._objects.pop(key, None)

    def presign_put(self, key: str, *, size_bytes: int, sha256: Sha256, expires_s: int) -> PresignedPut:
        return self._grant(_Grant(check_key(key), self._now_s() + expires_s, size_bytes, {"x-sha256": sha256}))

    def create_multipart(self, key: str) -> str:
        self._enter("create_multipart", key)
        with self._lock:
            return self._uploads.create(key, self._now_s())

    def list_uploads(self, prefix: str) -> Iterator[UploadInfo]:
        self._enter("list_uploads", prefix, is_key=False)
        with self._lock:
            return iter(self._uploads.list(prefix))

    def list_parts(self, key: str, upload_id: str) -> tuple[PartInfo, ...]:
        self._enter("list_parts", key)
        with self._lock:
            return self._uploads.parts(key, upload_id)

    def presign_part(
        self, key: str, upload_id: str, *, number: int, size_bytes: int, md5: Md5, expires_s: int
    ) -> PresignedPut:
        expires_at_s = self._now_s() + expires_s
        return self._grant(_Grant(check_key(key), expires_at_s, size_bytes, {"content-md5": md5}, upload_id, number))

    def complete_multipart(self, key: str, upload_id: str, parts: Sequence[PartInfo]) -> str:
        self._enter("complete_multipart", key)
        with self._lock:
            etag = self._store(key, self._uploads.join(key, upload_id, parts))
            if self._take_lost_reply(key):
                raise Retryable(f"completion of {key}: the connection was reset")
        return etag

    def abort_multipart(self, key: str, upload_id: str) -> None:
        self._enter("abort_multipart", key)
        with self._lock:
            self._uploads.abort(key, upload_id)

    def allow_public_reads(self) -> None:
        self._enter("policy", "", is_key=False)
        self.public_reads = True

    # What the holder of a presigned URL does with it.

    def redeem_put(self, url: str, headers: Mapping[str, str], body: bytes) -> str:
        """PUT ``body`` to a presigned URL: the new ETag, or the codes that ``transfer.upload`` raises."""
        grant = self._redeem(url)
        if any(headers.get(name) != value for name, value in grant.headers.items()):
            raise Rejected("url_refused", f"the URL for {grant.key} was not signed for this request")
        if len(body) != grant.size_bytes:
            raise Rejected("size_mismatch", f"{grant.key}: {len(body)} bytes, announced {grant.size_bytes}")
        hashes = {"x-sha256": sha256_hex, "content-md5": md5_hex}
        if any(hashes[name](body) != value for name, value in grant.headers.items()):
            raise Rejected("checksum_mismatch", f"{grant.key}: these are not the announced bytes")
        return self._put_part(grant, bytes(body)) if grant.upload_id else self.put(grant.key, body)

    # Inside.

    def _enter(self, operation: str, key: str, *, is_key: bool = True) -> None:
        if is_key:
            check_key(key)
        if self.before is not None:
            self.before(operation, key)
        with self._lock:
            for index, (wanted, key_part, error) in enumerate(self._faults):
                if wanted in ("", operation) and key_part in key:
                    del self._faults[index]
                    raise error

    def _put_part(self, grant: _Grant, body: bytes) -> str:
        self._enter("put_part", grant.key)
        with self._lock:
            try:
                return self._uploads.put(grant.key, grant.upload_id, grant.number, body, self._now_s())
            except UploadMissing as missing:
                raise Rejected("upload_refused", missing.message) from missing

    def _check_condition(self, key: str, if_none_match: bool, if_match: str | None) -> None:
        found = self._objects.get(key)
        if if_none_match and found is not None:
            raise PreconditionFailed(key)
        if if_match is not None and (found is None or found.info.etag != if_match):
            raise PreconditionFailed(key)

    def _store(self, key: str, body: bytes) -> str:
        etag = f'"{md5_hex(body)}"'
        self._objects[key] = _Object(body, ObjectInfo(key, len(body), etag, float(int(self._now_s()))))
        return etag

    def _take_lost_reply(self, key: str) -> bool:
        for index, key_part in enumerate(self._lost_replies):
            if key_part in key:
                del self._lost_replies[index]
                return True
        return False

    def _find(self, key: str) -> _Object:
        found = self._objects.get(key)
        if found is None:
            raise ObjectMissing(key)
        return found

    def _grant(self, grant: _Grant) -> PresignedPut:
        url = f"memory://{grant.key}?signature={secrets.token_hex(16)}"
        with self._lock:
            self._grants[url] = grant
        return PresignedPut(url, {"content-length": str(grant.size_bytes), **grant.headers})

    def _redeem(self, url: str) -> _Grant:
        with self._lock:
            grant = self._grants.get(url)
        if grant is None:
            raise Rejected("url_refused", "this URL was not signed here")
        if self._now_s() >= grant.expires_at_s:
            raise Rejected("url_expired", f"the URL for {grant.key} has expired")
        return grant

    def _now_s(self) -> float:
        return self._clock.wall_ns() / 1e9
