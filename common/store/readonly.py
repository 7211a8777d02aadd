"""A store for who holds no keys: reads go over an ``ObjectReader``, everything else is refused with one code.

So that a validator without write access is put together of the same parts as one with it. Invariant: nothing in here
writes, lists or signs; an ETag names content, since there is no version to swap.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NoReturn

from common.errors import Rejected
from common.store.multipart import Md5, PartInfo, UploadInfo
from common.store.port import Fetched, ObjectInfo, ObjectReader, PresignedPut
from common.units import Sha256, sha256_hex

READ_ONLY = "read_only"


class ReadOnlyStore:
    """An ``ObjectStore`` of which only whole objects can be read. All the rest raises ``Rejected('read_only')``."""

    def __init__(self, reader: ObjectReader) -> None:
        self._reader = reader

    def get(self, key: str, *, start: int | None = None, end: int | None = None, max_bytes: int) -> Fetched:
        """The whole object. Raises as ``ObjectReader.fetch``; a range is refused."""
        if start is not None or end is not None:
            _refuse("a range of", key)
        body = self._reader.fetch(key, max_bytes=max_bytes)
        return Fetched(body, ObjectInfo(key, len(body), f'"{sha256_hex(body)}"', 0.0))

    def head(self, key: str) -> ObjectInfo | None:
        _refuse("the facts of", key)

    def put(self, key: str, body: bytes, *, if_none_match: bool = False, if_match: str | None = None) -> str:
        _refuse("a put of", key)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        _refuse("a listing of", prefix)

    def delete(self, key: str) -> None:
        _refuse("a delete of", key)

    def presign_put(self, key: str, *, size_bytes: int, sha256: Sha256, expires_s: int) -> PresignedPut:
        _refuse("a URL for", key)

    def create_multipart(self, key: str) -> str:
        _refuse("an upload of", key)

    def list_uploads(self, prefix: str) -> Iterator[UploadInfo]:
        _refuse("the uploads of", prefix)

    def list_parts(self, key: str, upload_id: str) -> tuple[PartInfo, ...]:
        _refuse("the parts of", key)

    def presign_part(
        self, key: str, upload_id: str, *, number: int, size_bytes: int, md5: Md5, expires_s: int
    ) -> PresignedPut:
        _refuse("a URL for a part of", key)

    def complete_multipart(self, key: str, upload_id: str, parts: Sequence[PartInfo]) -> str:
        _refuse("a completion of", key)

    def abort_multipart(self, key: str, upload_id: str) -> None:
        _refuse("an abort of", key)

    def allow_public_reads(self) -> None:
        _refuse("a policy for", "the bucket")


def _refuse(what: str, key: str) -> NoReturn:
    raise Rejected(READ_ONLY, f"{what} {key} needs keys of the storage, and this process has none")
