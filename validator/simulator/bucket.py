"""Log, submissions and revisions of a simulated run as the real bucket keeps them.

Everything is written into an object store in memory with real signatures, through the production writer, so that
``verify_run`` can judge the whole run.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from copy import copy

from common import keys
from common.codec.container import partition_hashes
from common.codec.params import delta_params
from common.identity import SignedRecord, Signer
from common.records import (
    MAX_MANIFEST_BYTES,
    Manifest,
    StoredSubmission,
    decode_submission,
    open_manifest,
    sign_manifest,
    sign_receipt,
)
from common.reductions import Reduced, Reduction, sign_reduction
from common.runlog.commands import put_command, resume_command
from common.runlog.entries import EntryData, Resumed, RevisionCommitted, RoundFrozen
from common.runlog.genesis import create_run
from common.runlog.recompute import MergeResult
from common.runlog.state import RunState
from common.runlog.writer import LogWriter
from common.spec import RunSpec
from common.store.memory import MemoryStore
from common.store.port import ObjectMissing, PreconditionFailed
from common.units import Hotkey, Revision, RoundId, Sha256, sha256_hex
from validator.merging import store_revision
from validator.simulator.events import Queue
from validator.simulator.logs import ONCE, Log, StoreLog
from validator.simulator.records import Hashes, make_manifest, make_receipt
from validator.simulator.work import Offer, make_all


class BucketRecords:
    """The real objects in a store in memory, one shard."""

    def __init__(
        self, spec: RunSpec, owner: Signer, leader: Signer, miners: Mapping[Hotkey, Signer], queue: Queue
    ) -> None:
        """Creates the run. ``miners`` sign their own manifests."""
        serial = itertools.count()
        self.spec = spec
        self.store = MemoryStore(queue)
        self._hashes = Hashes()
        self._owner = owner
        self._leader = leader
        self._miners = miners
        self._queue = queue
        writer = LogWriter(self.store, spec, leader, queue, lambda: f"{next(serial):032x}", ONCE)
        self.log: Log = StoreLog(writer, create_run(self.store, spec, owner, queue, lambda: "f" * 32, ONCE))

    def beside(self, leader: Signer, log: Log) -> BucketRecords:
        """The same bucket, as another validator writes and reads it."""
        other = copy(self)
        other._hashes, other._leader, other.log = Hashes(), leader, log
        return other

    @property
    def state(self) -> RunState:
        return self.log.state

    def append(self, data: EntryData, reason: str, new_term: bool = False) -> None:
        self.log.append(data, reason, new_term)

    def base_sha256(self, revision: Revision) -> Sha256:
        return self._hashes.of(self.state, revision)

    def name(self, offer: Offer) -> None:
        make_all([offer])
        offer.sha256 = sha256_hex(offer.body)

    def announce(self, offer: Offer) -> tuple[Manifest, SignedRecord]:
        params = delta_params(self.spec.codec, offer.base)
        ranges = partition_hashes(offer.body, len(offer.target), params, self.spec.reduce.partitions)
        manifest = make_manifest(self.spec, self.base_sha256(offer.base), offer, ranges)
        record = sign_manifest(manifest, self._miners[offer.session.hotkey])
        return open_manifest(record.to_json(), self.spec.run)

    def receipt(self, manifest: Manifest, record: SignedRecord) -> StoredSubmission:
        now_ms = self._queue.wall_ns() // 1_000_000
        receipt = make_receipt(self.spec, self._leader.hotkey, self.state.term, manifest, record.sha256, now_ms)
        return StoredSubmission(manifest, receipt, record, sign_receipt(receipt, self._leader))

    def put(self, offer: Offer) -> None:
        assert offer.stored is not None
        self.store.put(offer.stored.manifest.key, offer.body)

    def keep(self, stored: StoredSubmission) -> StoredSubmission:
        key = _manifest_key(stored.manifest)
        try:
            self.store.put(key, stored.encode(), if_none_match=True)
        except PreconditionFailed:
            return self._read_manifest(key)
        return stored

    def kept(self, round_id: RoundId) -> list[StoredSubmission]:
        listed = [info.key for info in self.store.list(keys.round_prefix(self.spec.run, round_id))]
        found = [(key, keys.parse_key(self.spec.run, key)) for key in listed]
        return [self._read_manifest(key) for key, parts in found if parts is not None and parts.kind == "manifest"]

    def kept_for(self, manifest: Manifest) -> StoredSubmission | None:
        key = _manifest_key(manifest)
        return self._read_manifest(key) if self.store.head(key) is not None else None

    def there(self, manifest: Manifest) -> bool:
        info = self.store.head(manifest.key)
        return info is not None and info.size_bytes == manifest.delta.size_bytes

    def read(self, manifest: Manifest) -> bytes | None:
        try:
            return self.store.get(manifest.key, max_bytes=manifest.delta.size_bytes).body
        except ObjectMissing:
            return None

    def revision(self, plan: RoundFrozen, result: MergeResult, reduced: Reduced | None = None) -> RevisionCommitted:
        return store_revision(self.store, self.state, plan, (result,), reduced=reduced).commit

    def keep_word(self, word: Reduction) -> Sha256:
        """An owner's word for its means, signed by it; the hash of its object."""
        body = sign_reduction(word, self._miners[word.signer]).encode()
        sha256 = sha256_hex(body)
        self.store.put(keys.reduction_key(word.run, word.round, word.signer, sha256), body)
        return sha256

    def resume(self) -> Resumed:
        record = resume_command(self.state, self._owner, self._queue.wall_ns() // 1_000_000)
        return Resumed(put_command(self.store, record))

    def forget(self, before: RoundId) -> None:
        """A bucket forgets nothing."""

    def _read_manifest(self, key: str) -> StoredSubmission:
        return decode_submission(self.store.get(key, max_bytes=MAX_MANIFEST_BYTES).body, self.spec.run)


def _manifest_key(manifest: Manifest) -> str:
    return keys.manifest_key(manifest.run, manifest.round, manifest.shard, manifest.signer, manifest.delta.sha256)
