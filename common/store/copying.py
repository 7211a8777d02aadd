"""One large object from one store into another, a part at a time.

Invariants: memory holds one part, whatever the object's size; the copy appears whole and with the hash that its name
promises, or not at all; a copy that was cut off is continued by the same call, which reads the source again, since only
that proves the hash, and puts only the parts that are not there. Blocking.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from common.errors import Rejected, Retryable
from common.store.multipart import (
    MAX_PARTS,
    Md5,
    PartInfo,
    UploadMissing,
    md5_hex,
    missing_parts,
    newest_parts,
    part_count,
    part_range,
)
from common.store.port import ObjectInfo, ObjectMissing, ObjectStore, PresignedPut
from common.units import Sha256, format_bytes

URL_LIFE_S = 3600
"""Of the URL that a part is put with: longer than a part can take."""
Send = Callable[[PresignedPut, bytes], object]
"""Puts a body to a presigned URL. Raises as ``transfer.upload``."""


@dataclass(frozen=True)
class PartCopier:
    """Copies from ``old`` to ``new`` in parts of ``part_bytes``. Threads may share it, each with a key of its own."""

    old: ObjectStore
    new: ObjectStore
    send: Send
    part_bytes: int

    def copy(self, info: ObjectInfo, sha256: Sha256 | None) -> None:
        """Copy the object as it was listed.

        Raises ``ObjectMissing`` when it is gone, and leaves nothing of the copy then; ``Rejected``: ``too_large``,
        ``checksum_mismatch`` when its bytes have not the given hash; ``Retryable`` as the stores, and when the object
        changed meanwhile.
        """
        key, count = info.key, part_count(info.size_bytes, self.part_bytes)
        if count > MAX_PARTS:
            raise Rejected("too_large", f"{key} has {format_bytes(info.size_bytes)}, too much for {MAX_PARTS} parts")
        upload_id = self._upload(key)
        there, digest, digests, put = self.new.list_parts(key, upload_id), hashlib.sha256(), list[Md5](), False
        reused = _by_size(there, info.size_bytes, self.part_bytes) if _opaque(there) else frozenset[int]()
        for number in range(1, count + 1):
            try:
                body = self._part(info, number)
            except ObjectMissing:
                self.new.abort_multipart(key, upload_id)
                raise
            digest.update(body)
            digests.append(md5_hex(body))
            if number not in reused and _found(there, number, digests[-1]) is None:
                self._put(key, upload_id, number, body, digests[-1])
                put = True
        if sha256 is not None and digest.hexdigest() != sha256:
            self.new.abort_multipart(key, upload_id)
            raise Rejected("checksum_mismatch", f"{key} does not have the SHA-256 in its name")
        parts = self.new.list_parts(key, upload_id) if put else there
        self._complete(info, upload_id, _chosen(key, parts, tuple(digests)))

    def _upload(self, key: str) -> str:
        """The newest one that was begun for this key, or a new one."""
        begun = [upload for upload in self.new.list_uploads(key) if upload.key == key]
        newest = max(begun, key=lambda upload: (upload.started_s, upload.upload_id), default=None)
        return newest.upload_id if newest is not None else self.new.create_multipart(key)

    def _part(self, info: ObjectInfo, number: int) -> bytes:
        start, end = part_range(info.size_bytes, self.part_bytes, number)
        found = self.old.get(info.key, start=start, end=end, max_bytes=end - start)
        if found.info.etag != info.etag or len(found.body) != end - start:
            raise Retryable(f"{info.key} was written again while it was copied: try again")
        return found.body

    def _put(self, key: str, upload_id: str, number: int, body: bytes, md5: Md5) -> None:
        url = self.new.presign_part(key, upload_id, number=number, size_bytes=len(body), md5=md5, expires_s=URL_LIFE_S)
        self.send(url, body)

    def _complete(self, info: ObjectInfo, upload_id: str, parts: tuple[PartInfo, ...]) -> None:
        try:
            self.new.complete_multipart(info.key, upload_id, parts)
        except UploadMissing:
            found = self.new.head(info.key)  # a first try has done it, and its reply was lost
            if found is None or found.size_bytes != info.size_bytes:
                raise Retryable(f"the upload of {info.key} went away: try again") from None


def _opaque(parts: tuple[PartInfo, ...]) -> bool:
    """Whether the store's ETags are no MD5s: then sizes tell what is there. That is sound here, since every part was
    put by a URL that was bound to the source's bytes."""
    return any(len(part.etag.strip('"')) != 32 for part in parts)


def _by_size(parts: tuple[PartInfo, ...], size_bytes: int, part_bytes: int) -> frozenset[int]:
    left = missing_parts(newest_parts(parts), size_bytes, part_bytes, ())
    return frozenset(range(1, part_count(size_bytes, part_bytes) + 1)) - frozenset(left)


def _found(parts: tuple[PartInfo, ...], number: int, md5: Md5) -> PartInfo | None:
    return next((part for part in parts if part.number == number and part.etag.strip('"') == md5), None)


def _chosen(key: str, parts: tuple[PartInfo, ...], digests: tuple[Md5, ...]) -> tuple[PartInfo, ...]:
    """The part of each number: that with the right MD5, or the newest where ETags are none."""
    newest = newest_parts(parts)
    found = [_found(parts, number, md5) or newest.get(number) for number, md5 in enumerate(digests, start=1)]
    chosen = tuple(part for part in found if part is not None)
    if len(chosen) != len(digests):
        raise Retryable(f"the storage does not list every part of {key} that it took: try again")
    return chosen
