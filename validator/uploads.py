"""The leader's hand in uploads: where a miner puts a delta, and making one object of its parts.

Invariants: URLs are for the one key that the manifest's sender, round and hash make, and each is bound to its bytes;
only the leader completes an upload; nothing is remembered here: which upload of a key is under way, and which of its
parts are there, the store tells, so that a restarted leader, or another one, goes on where the first was.
A key's upload under way that was begun first is the one that counts; two leaders, or two requests at once, agree on it.
All functions block: call them in threads.
"""

from __future__ import annotations

from collections.abc import Sequence

from loguru import logger

from common import keys
from common.errors import Rejected, Retryable
from common.records import Manifest
from common.store.multipart import (
    MAX_PARTS,
    PART_BYTES,
    Md5,
    PartInfo,
    UploadInfo,
    UploadMissing,
    missing_parts,
    newest_parts,
    part_count,
    part_size,
)
from common.store.port import MAX_PRESIGN_S, ObjectInfo, ObjectStore, PresignedPut
from common.units import RoundId
from common.wire import MAX_PARTS_A_REPLY, MultipartTarget, PartTarget, UploadTarget
from validator.outages import only_facts

NAMED_PARTS = 8
"""Missing parts that a refusal names."""


class Uploads:
    """Uploads to one run's store. Threads may share it. Every method but ``check`` may raise ``Retryable``."""

    def __init__(self, store: ObjectStore, part_bytes: int = PART_BYTES) -> None:
        """``part_bytes`` is the size of parts, and of the largest delta that goes in one put: that of the miners."""
        self._store = store
        self._part_bytes = part_bytes

    def check(self, manifest: Manifest, parts: Sequence[str]) -> None:
        """Raise ``Rejected('bad_parts')`` unless so many hashes of parts go with a delta of this size."""
        count = part_count(manifest.delta.size_bytes, self._part_bytes)
        wanted = count if count > 1 else 0
        if count > MAX_PARTS:
            raise Rejected("bad_parts", f"a delta has at most {MAX_PARTS} parts of {self._part_bytes} bytes")
        if len(parts) != wanted:
            size = f"{manifest.delta.size_bytes} bytes in parts of {self._part_bytes}"
            raise Rejected("bad_parts", f"{len(parts)} hashes of parts, where {wanted} are due for {size}")

    def target(
        self, manifest: Manifest, parts: Sequence[str], expires_s: int, *, again: bool = False
    ) -> UploadTarget | MultipartTarget | None:
        """Where the delta goes, or what of it is missing; None when the whole object is there.

        ``again`` asks for an upload although there is an object: it was read, and is not the delta. ``parts`` are the
        hashes that the miner announced; ``expires_s`` is cut to what a store signs. Raises ``Rejected('bad_parts')``.
        """
        self.check(manifest, parts)
        expires_s = min(max(1, expires_s), MAX_PRESIGN_S)
        if not again and arrived(self._store, manifest):
            return None
        with only_facts():
            return self._in_parts(manifest, parts, expires_s) if parts else self._whole(manifest, expires_s)

    def finish(self, manifest: Manifest) -> None:
        """Make the object of its parts, if it is uploaded in parts and not made yet. Idempotent.

        Raises ``Rejected('not_uploaded')`` that says which parts are missing. Returns for a delta in one put, and
        where the object is there already: whether it is right, whoever reads it finds out.
        """
        if part_count(manifest.delta.size_bytes, self._part_bytes) == 1:
            return
        with only_facts():
            found = [(upload, self._parts(upload)) for upload in self._under_way(manifest.key)]
        whole = next(((upload, there) for upload, there in found if not self._missing(manifest, there)), None)
        if whole is not None:
            self._join(manifest, *whole)
            self._abort([upload for upload, _ in found if upload is not whole[0]])
        elif arrived(self._store, manifest) is None:
            raise self._not_uploaded(manifest, found[0][1] if found else {})

    def abort_leftovers(self, run: str, keep_from: RoundId) -> int:
        """See the function of this name."""
        return abort_leftovers(self._store, run, keep_from)

    # Targets.

    def _whole(self, manifest: Manifest, expires_s: int) -> UploadTarget:
        delta = manifest.delta
        put = self._store.presign_put(
            manifest.key, size_bytes=delta.size_bytes, sha256=delta.sha256, expires_s=expires_s
        )
        return UploadTarget(url=put.url, headers=dict(put.headers), expires_in_s=float(expires_s))

    def _in_parts(self, manifest: Manifest, parts: Sequence[str], expires_s: int) -> MultipartTarget:
        digests = tuple(Md5(part) for part in parts)
        upload, there = self._begun(manifest.key)
        missing = missing_parts(there, manifest.delta.size_bytes, self._part_bytes, digests)
        targets = []
        for number in missing[:MAX_PARTS_A_REPLY]:
            put = self._presign(manifest, upload, number, digests[number - 1], expires_s)
            targets.append(PartTarget(number=number, url=put.url, headers=dict(put.headers)))
        return MultipartTarget(parts=tuple(targets), missing=len(missing), expires_in_s=float(expires_s))

    def _presign(self, manifest: Manifest, upload: UploadInfo, number: int, md5: Md5, expires_s: int) -> PresignedPut:
        size_bytes = part_size(manifest.delta.size_bytes, self._part_bytes, number)
        return self._store.presign_part(
            manifest.key, upload.upload_id, number=number, size_bytes=size_bytes, md5=md5, expires_s=expires_s
        )

    def _begun(self, key: str) -> tuple[UploadInfo, dict[int, PartInfo]]:
        """The upload that counts and its parts; a new one when there is none."""
        found = self._under_way(key)
        if not found:
            ours = UploadInfo(key, self._store.create_multipart(key), 0.0)
            # Another may have been begun in the same moment; a listing that misses ours already is no reason to wait.
            found = self._under_way(key) or [ours]
        return found[0], self._parts(found[0])

    # Completion.

    def _join(self, manifest: Manifest, upload: UploadInfo, there: dict[int, PartInfo]) -> None:
        """Whatever the store answers, the object that is there or not has the last word: the reply to an earlier
        completion may have been lost."""
        count = part_count(manifest.delta.size_bytes, self._part_bytes)
        ordered = [there[number] for number in range(1, count + 1)]
        try:
            self._store.complete_multipart(manifest.key, upload.upload_id, ordered)
        except (Retryable, Rejected) as fault:
            if not arrived(self._store, manifest):
                raise Retryable(f"the parts of {manifest.key} could not be joined yet: {fault}") from fault
            logger.debug("{} is there, although the answer to its completion was: {}", manifest.key, fault)

    def _missing(self, manifest: Manifest, there: dict[int, PartInfo]) -> list[int]:
        """Numbers of the parts that are not there, by size: their bytes are those that their URLs were bound to."""
        return missing_parts(there, manifest.delta.size_bytes, self._part_bytes, ())

    def _not_uploaded(self, manifest: Manifest, there: dict[int, PartInfo]) -> Rejected:
        missing = self._missing(manifest, there)
        named = ", ".join(str(number) for number in missing[:NAMED_PARTS])
        more = ", …" if len(missing) > NAMED_PARTS else ""
        count = part_count(manifest.delta.size_bytes, self._part_bytes)
        return Rejected("not_uploaded", f"{len(missing)} of {count} parts are missing: {named}{more}")

    def _abort(self, uploads: Sequence[UploadInfo]) -> None:
        """Those that another has overtaken. What can't be aborted now goes with the leftovers."""
        for upload in uploads:
            try:
                self._store.abort_multipart(upload.key, upload.upload_id)
            except (Retryable, Rejected) as fault:
                logger.debug("an overtaken upload of {} is left for later: {}", upload.key, fault)

    # What the store knows.

    def _under_way(self, key: str) -> list[UploadInfo]:
        """The uploads of exactly this key; the one that counts comes first."""
        found = [upload for upload in self._store.list_uploads(key) if upload.key == key]
        return sorted(found, key=lambda upload: (upload.started_s, upload.upload_id))

    def _parts(self, upload: UploadInfo) -> dict[int, PartInfo]:
        """Its parts; none of one that has just ended: the object, or a refused URL, tells how."""
        try:
            return newest_parts(self._store.list_parts(upload.key, upload.upload_id))
        except UploadMissing:
            return {}


def arrived(store: ObjectStore, manifest: Manifest) -> str | None:
    """ETag of the object at the announced key; None unless one of the announced size lies there.

    No store tells the SHA-256 of a whole object that came in parts, so that this is no proof of its content; but the
    URLs that it came by were bound to announced bytes. Raises ``Retryable``.
    """
    info = there(store, manifest)
    return info.etag if info is not None and info.size_bytes == manifest.delta.size_bytes else None


def there(store: ObjectStore, manifest: Manifest) -> ObjectInfo | None:
    """Whatever lies at the announced key. Raises ``Retryable``."""
    with only_facts():
        return store.head(manifest.key)


def abort_leftovers(store: ObjectStore, run: str, keep_from: RoundId) -> int:
    """Abort the uploads of deltas of rounds before ``keep_from``; how many there were. Raises ``Retryable``.

    ``keep_from`` is the oldest round whose submissions may still count. Only older ones are touched, so that a leader
    that was replaced without knowing it does no harm to uploads of now.
    """
    with only_facts():
        old = [upload for upload in store.list_uploads(keys.run_prefix(run)) if _is_before(run, upload, keep_from)]
        for upload in old:
            store.abort_multipart(upload.key, upload.upload_id)
    return len(old)


def _is_before(run: str, upload: UploadInfo, round_id: RoundId) -> bool:
    parts = keys.parse_key(run, upload.key)
    return parts is not None and parts.kind == "delta" and parts.round_id is not None and parts.round_id < round_id
