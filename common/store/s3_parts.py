"""Multipart uploads of the S3 adapter: its own calls on the adapter's client, under the adapter's retries and errors.

All of them may be repeated: a second creation leaves an empty upload behind, which is aborted with the leftovers, and
a second completion is told that there is no such upload, which is what the port says to it.
Sources: the S3 API reference, and what SeaweedFS was seen to do: it gives no key marker between pages (its pages are
in the order of upload ids), lists a part that was put again twice, and completes a completed upload once more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

from common.store.multipart import PartInfo, UploadInfo, UploadMissing

T = TypeVar("T")
MAX_PAGE = 1000


class Repeat(Protocol):
    """The adapter's retries: (key, action) → result, in the port's errors."""

    def __call__(self, key: str, action: Callable[[], T]) -> T: ...


class S3Parts:
    """The calls, for one bucket and prefix (``base``). Threads may share it."""

    def __init__(
        self, client: Any, base: str, address: Callable[[str], dict[str, Any]], repeat: Repeat, page_items: int
    ) -> None:
        """``address`` makes bucket and key of the port's key; ``page_items`` is the length of a listing's page."""
        self._client = client
        self._base = base
        self._address = address
        self._repeat = repeat
        self._page_items = min(page_items, MAX_PAGE)

    def create(self, key: str) -> str:
        """See ``ObjectStore.create_multipart``."""
        request = self._address(key)
        return self._repeat(key, lambda: str(self._client.create_multipart_upload(**request)["UploadId"]))

    def uploads(self, bucket: str, prefix: str) -> Iterator[UploadInfo]:
        """See ``ObjectStore.list_uploads``."""
        request: dict[str, Any] = {"Bucket": bucket, "Prefix": self._base + prefix, "MaxUploads": self._page_items}
        while True:
            page = self._repeat(prefix, lambda: self._client.list_multipart_uploads(**request))
            for item in page.get("Uploads", ()):
                key = item["Key"].removeprefix(self._base)
                yield UploadInfo(key, item["UploadId"], item["Initiated"].timestamp())
            markers = {"KeyMarker": page.get("NextKeyMarker"), "UploadIdMarker": page.get("NextUploadIdMarker")}
            following = {name: marker for name, marker in markers.items() if marker}
            if not page.get("IsTruncated") or not following:
                return
            request.update(following)

    def parts(self, key: str, upload_id: str) -> tuple[PartInfo, ...]:
        """See ``ObjectStore.list_parts``."""
        request = self._address(key) | {"UploadId": upload_id, "MaxParts": self._page_items}
        found: list[PartInfo] = []
        while True:
            page = self._repeat(key, lambda: self._client.list_parts(**request))
            found += [_part(item) for item in page.get("Parts", ())]
            if not page.get("IsTruncated"):
                return tuple(found)
            request["PartNumberMarker"] = page["NextPartNumberMarker"]

    def complete(self, key: str, upload_id: str, parts: Sequence[PartInfo]) -> str:
        """See ``ObjectStore.complete_multipart``."""
        listed = [{"PartNumber": part.number, "ETag": part.etag} for part in parts]
        request = self._address(key) | {"UploadId": upload_id, "MultipartUpload": {"Parts": listed}}
        return self._repeat(key, lambda: str(self._client.complete_multipart_upload(**request)["ETag"]))

    def abort(self, key: str, upload_id: str) -> None:
        """See ``ObjectStore.abort_multipart``."""
        request = self._address(key) | {"UploadId": upload_id}
        try:
            self._repeat(key, lambda: self._client.abort_multipart_upload(**request))
        except UploadMissing:
            return


def _part(item: dict[str, Any]) -> PartInfo:
    return PartInfo(item["PartNumber"], item["Size"], item["ETag"], item["LastModified"].timestamp())
