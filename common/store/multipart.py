"""Objects in parts: how a body is cut, what binds a part, and what a store says about an upload under way.

Invariant: whoever knows a body's size and the size of a part knows every part's number and range, so that an upload
is continued by any process from the store's own list of parts. All parts but the last are equal, as R2 demands.
A part is bound by its length and its MD5 (Content-MD5), which every S3 service checks; SHA-256 would be the better
hash, but R2 answers 501 to a part that carries it, and SeaweedFS and AWS tell in ListParts the MD5 (as ETag) only.
Nothing rests on MD5 against a liar: a part comes from whoever announced its hash, and the whole object is checked by
SHA-256 before it counts. Sources: the S3 API reference; the live probe in github.com/Alos-no/Cloudflare.NET/pull/43.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NewType

from common.errors import Rejected

Md5 = NewType("Md5", str)  # 32 lowercase hex digits

MD5_PATTERN = r"^[0-9a-f]{32}$"
MIN_PART_BYTES = 5 << 20
"""S3 takes no smaller part but the last."""
MAX_PARTS = 4096
"""Of one object: 32 GiB in parts of ``PART_BYTES``; S3 itself takes 10,000, but the list must fit into one request."""
PART_BYTES = 8 << 20
"""Size of a part, and of the largest body that goes in one put. At 10 Mbit/s a part takes 7 s, which is what a cut
connection costs at most; above S3's minimum, so that a service that counts in MB instead of MiB takes it too."""


@dataclass(frozen=True)
class UploadInfo:
    """A multipart upload that was begun and neither completed nor aborted."""

    key: str
    upload_id: str
    started_s: float
    """The store's clock, in seconds since the epoch, at a grain of one second."""


@dataclass(frozen=True)
class PartInfo:
    """One part that the store has. ``etag`` is opaque, in the store's own quotes."""

    number: int
    """From 1."""
    size_bytes: int
    etag: str
    modified_s: float


class UploadMissing(Rejected):
    """There is no such upload (any more): it was completed or aborted."""

    def __init__(self, key: str) -> None:
        super().__init__("upload_missing", f"no multipart upload of {key} is under way by that name")
        self.key = key


def part_count(size_bytes: int, part_bytes: int) -> int:
    """Number of parts of a body; 1 for one that goes in a single put."""
    return max(1, -(-size_bytes // part_bytes))


def part_range(size_bytes: int, part_bytes: int, number: int) -> tuple[int, int]:
    """First byte and the one after the last of part ``number``, from 1."""
    start = (number - 1) * part_bytes
    return start, min(size_bytes, start + part_bytes)


def part_size(size_bytes: int, part_bytes: int, number: int) -> int:
    """Bytes of part ``number``."""
    start, end = part_range(size_bytes, part_bytes, number)
    return end - start


def part_digests(body: bytes | memoryview, part_bytes: int) -> tuple[Md5, ...]:
    """The MD5 of each part; none for a body that goes in a single put."""
    count = part_count(len(body), part_bytes)
    view = memoryview(body)
    ranges = (part_range(len(body), part_bytes, number) for number in range(1, count + 1))
    return tuple(md5_hex(view[start:end]) for start, end in ranges) if count > 1 else ()


def md5_hex(data: bytes | memoryview) -> Md5:
    """The MD5 of ``data`` as 32 lowercase hex digits."""
    return Md5(hashlib.md5(data, usedforsecurity=False).hexdigest())


def newest_parts(parts: Iterable[PartInfo]) -> dict[int, PartInfo]:
    """One part for each number: SeaweedFS also lists parts that were put again with other bytes."""
    found: dict[int, PartInfo] = {}
    for part in parts:
        if part.number not in found or part.modified_s >= found[part.number].modified_s:
            found[part.number] = part
    return found


def missing_parts(found: dict[int, PartInfo], size_bytes: int, part_bytes: int, digests: tuple[Md5, ...]) -> list[int]:
    """Numbers of the parts that are still to be put, by size, and by MD5 where the store's ETags are such.

    ``digests`` may be empty, where they are not known. Some services' ETags are no MD5 (R2; AWS with KMS), which shows
    in that not one of them fits; sizes then decide alone, and that is sound, since every URL was bound to the bytes.
    """
    count = part_count(size_bytes, part_bytes)
    fitting = {
        number
        for number, part in found.items()
        if number <= count and part.size_bytes == part_size(size_bytes, part_bytes, number)
    }
    proven = {number for number in fitting if digests and found[number].etag.strip('"') == digests[number - 1]}
    there = proven or fitting
    return [number for number in range(1, count + 1) if number not in there]
