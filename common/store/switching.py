"""One store whose keys, or whose bucket, can be changed while everybody goes on using it.

Invariants: each call goes whole to one store, the one that is in use when it begins; while ``gate`` names a reason no
call is made at all, so that nothing is read from or written to a bucket that a run has left. Threads may share it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from common.errors import Retryable
from common.store.multipart import Md5, PartInfo, UploadInfo
from common.store.place import BucketPlace
from common.store.port import Fetched, ObjectInfo, ObjectStore, PresignedPut
from common.units import Sha256

Gate = Callable[[], str]


class SwitchingStore:
    """An ``ObjectStore`` that passes every call on to the one in use."""

    def __init__(self, store: ObjectStore, place: BucketPlace) -> None:
        self._now = (store, place)
        self.gate: Gate = lambda: ""
        """Why nothing may be done here now; empty when everything may."""

    @property
    def place(self) -> BucketPlace:
        """Where the store in use is."""
        return self._now[1]

    def use(self, store: ObjectStore, place: BucketPlace) -> None:
        """Every call from now on goes to ``store``."""
        self._now = (store, place)

    def put(self, key: str, body: bytes, *, if_none_match: bool = False, if_match: str | None = None) -> str:
        return self._open().put(key, body, if_none_match=if_none_match, if_match=if_match)

    def get(self, key: str, *, start: int | None = None, end: int | None = None, max_bytes: int) -> Fetched:
        return self._open().get(key, start=start, end=end, max_bytes=max_bytes)

    def head(self, key: str) -> ObjectInfo | None:
        return self._open().head(key)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        yield from self._open().list(prefix)

    def delete(self, key: str) -> None:
        self._open().delete(key)

    def presign_put(self, key: str, *, size_bytes: int, sha256: Sha256, expires_s: int) -> PresignedPut:
        return self._open().presign_put(key, size_bytes=size_bytes, sha256=sha256, expires_s=expires_s)

    def create_multipart(self, key: str) -> str:
        return self._open().create_multipart(key)

    def list_uploads(self, prefix: str) -> Iterator[UploadInfo]:
        yield from self._open().list_uploads(prefix)

    def list_parts(self, key: str, upload_id: str) -> tuple[PartInfo, ...]:
        return self._open().list_parts(key, upload_id)

    def presign_part(
        self, key: str, upload_id: str, *, number: int, size_bytes: int, md5: Md5, expires_s: int
    ) -> PresignedPut:
        return self._open().presign_part(
            key, upload_id, number=number, size_bytes=size_bytes, md5=md5, expires_s=expires_s
        )

    def complete_multipart(self, key: str, upload_id: str, parts: Sequence[PartInfo]) -> str:
        return self._open().complete_multipart(key, upload_id, parts)

    def abort_multipart(self, key: str, upload_id: str) -> None:
        self._open().abort_multipart(key, upload_id)

    def allow_public_reads(self) -> None:
        self._open().allow_public_reads()

    def _open(self) -> ObjectStore:
        why = self.gate()
        if why:
            raise Retryable(why)
        return self._now[0]
