"""Multipart uploads of the store in memory, with R2's rules: equal parts, none but the last below the minimum.

Not for threads: the store holds its lock. As on SeaweedFS, the strangest of the servers, a part that was put again
with other bytes is listed with the earlier ones.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field

from common.errors import Rejected
from common.store.multipart import PartInfo, UploadInfo, UploadMissing, md5_hex


@dataclass
class _Upload:
    info: UploadInfo
    parts: dict[str, tuple[PartInfo, bytes]] = field(default_factory=dict)
    """By ETag and number."""


class UploadTable:
    """The uploads under way."""

    def __init__(self, min_part_bytes: int, opaque_etags: bool) -> None:
        self._min_part_bytes = min_part_bytes
        self._opaque_etags = opaque_etags
        self._uploads: dict[str, _Upload] = {}

    def create(self, key: str, now_s: float) -> str:
        """The id of a new one."""
        upload_id = secrets.token_hex(16)
        self._uploads[upload_id] = _Upload(UploadInfo(key, upload_id, float(int(now_s))))
        return upload_id

    def list(self, prefix: str) -> list[UploadInfo]:
        """Those of keys that start with ``prefix``."""
        return [upload.info for upload in self._uploads.values() if upload.info.key.startswith(prefix)]

    def parts(self, key: str, upload_id: str) -> tuple[PartInfo, ...]:
        """What was put. Raises ``UploadMissing``."""
        parts = (part for part, _ in self._find(key, upload_id).parts.values())
        return tuple(sorted(parts, key=lambda part: part.number))

    def put(self, key: str, upload_id: str, number: int, body: bytes, now_s: float) -> str:
        """Add a part and return its ETag. Raises ``UploadMissing``."""
        digest = md5_hex(body)
        etag = f'"{md5_hex(digest.encode())}+opaque"' if self._opaque_etags else f'"{digest}"'
        part = PartInfo(number, len(body), etag, float(int(now_s)))
        parts = self._find(key, upload_id).parts
        parts.pop(f"{number}{etag}", None)
        parts[f"{number}{etag}"] = part, body
        return etag

    def join(self, key: str, upload_id: str, parts: Sequence[PartInfo]) -> bytes:
        """The object's bytes; the upload is over. Raises ``UploadMissing`` and ``Rejected('bad_parts')``."""
        upload = self._find(key, upload_id)
        self._check(key, upload, parts)
        body = b"".join(upload.parts[f"{part.number}{part.etag}"][1] for part in parts)
        del self._uploads[upload_id]
        return body

    def abort(self, key: str, upload_id: str) -> None:
        """Forget one; a missing one is no error."""
        if upload_id in self._uploads and self._uploads[upload_id].info.key == key:
            del self._uploads[upload_id]

    def _find(self, key: str, upload_id: str) -> _Upload:
        upload = self._uploads.get(upload_id)
        if upload is None or upload.info.key != key:
            raise UploadMissing(key)
        return upload

    def _check(self, key: str, upload: _Upload, parts: Sequence[PartInfo]) -> None:
        numbers = [part.number for part in parts]
        if not parts or numbers != sorted(set(numbers)):
            raise Rejected("bad_parts", f"{key}: parts must be in order of number")
        if any(f"{part.number}{part.etag}" not in upload.parts for part in parts):
            raise Rejected("bad_parts", f"{key}: a part is not there")
        sizes = [len(upload.parts[f"{part.number}{part.etag}"][1]) for part in parts]
        if any(size != sizes[0] or size < self._min_part_bytes for size in sizes[:-1]) or sizes[-1] > sizes[0]:
            raise Rejected("bad_parts", f"{key}: all parts but the last must be equal, and not too small")
