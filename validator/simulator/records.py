"""Log, submissions and revisions of a simulated run: kept as facts, or as the real bucket keeps them.

``FastRecords`` passes every entry through the log's rules and replay's effects, but signs and stores nothing: the
hashes in it are names, not proofs. ``BucketRecords`` writes everything into an object store in memory with real
signatures, through the production writer, so that ``verify_run`` can judge the whole run. Both give the same results.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from common import keys
from common.canonical import Json
from common.codec.container import partition_hashes
from common.codec.params import F32, delta_params
from common.errors import Retryable
from common.identity import SignedRecord, Signer
from common.merge.outer import OuterState
from common.model.layout import weights_hash
from common.records import (
    MAX_MANIFEST_BYTES,
    Manifest,
    ObjectRef,
    Receipt,
    SampleRange,
    StoredSubmission,
    decode_submission,
    open_manifest,
    sign_manifest,
    sign_receipt,
)
from common.runlog.casput import Patience
from common.runlog.commands import put_command, resume_command
from common.runlog.entries import Entry, EntryData, Resumed, RevisionCommitted, RoundFrozen, ShardState
from common.runlog.genesis import create_run
from common.runlog.recompute import MergeResult, hash_outer
from common.runlog.replay import apply_entry
from common.runlog.rules import plan_tokens
from common.runlog.state import RevisionNode, RunState
from common.runlog.writer import LogWriter, LostSlot
from common.spec import SCHEMA, RunSpec
from common.store.memory import MemoryStore
from common.store.port import ObjectMissing, PreconditionFailed
from common.store.retry import RetryPolicy
from common.units import Hotkey, Revision, RoundId, Sha256, ShardId, sha256_hex
from validator.merging import store_revision
from validator.simulator.events import Queue
from validator.simulator.work import Offer, make_all

SHARD = ShardId(0)
_DIGITS = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
NO_TRACE = sha256_hex(b"simulated")


class _Hashes:
    """Hashes of revisions, each made once."""

    def __init__(self) -> None:
        self._known: dict[Revision, Sha256] = {}

    def of(self, state: RunState, revision: Revision) -> Sha256:
        known = self._known.get(revision)
        if known is None:
            known = self._known[revision] = state.revisions[revision].sha256
        return known


class Records(Protocol):
    """What leader and miners write and read. Every method of a bucket may raise ``Retryable``."""

    @property
    def state(self) -> RunState:
        """What the log says."""
        ...

    def append(self, data: EntryData, reason: str, new_term: bool = False) -> None:
        """An entry of the present term, or of the next. Raises ``Rejected`` as the log's rules do."""
        ...

    def base_sha256(self, revision: Revision) -> Sha256:
        """The hash of a revision."""
        ...

    def name(self, offer: Offer) -> None:
        """Give a new submission its hash."""
        ...

    def announce(self, offer: Offer) -> tuple[Manifest, SignedRecord]:
        """The manifest of a submission, as the leader reads it."""
        ...

    def receipt(self, manifest: Manifest, record: SignedRecord) -> StoredSubmission:
        """The leader's receipt for it."""
        ...

    def put(self, offer: Offer) -> None:
        """The delta's bytes arrive in the bucket."""
        ...

    def keep(self, stored: StoredSubmission) -> StoredSubmission:
        """The manifest object, once the delta is there: it outlives the leader. What lies there then."""
        ...

    def kept(self, round_id: RoundId) -> list[StoredSubmission]:
        """The manifest objects of a round."""
        ...

    def kept_for(self, manifest: Manifest) -> StoredSubmission | None:
        """The manifest object beside a delta; None when there is none."""
        ...

    def there(self, manifest: Manifest) -> bool:
        """Whether an object of the announced size is there."""
        ...

    def read(self, manifest: Manifest) -> bytes | None:
        """The object; None when there is none."""
        ...

    def revision(self, plan: RoundFrozen, result: MergeResult) -> RevisionCommitted:
        """Store what a merge made."""
        ...

    def resume(self) -> Resumed:
        """The owner's order to go on after a pause, and the entry that obeys it."""
        ...

    def forget(self, before: RoundId) -> None:
        """Submissions of earlier rounds are of no use to anybody any more."""
        ...


@dataclass(frozen=True, kw_only=True)
class _Named(SignedRecord):
    """A record that nobody signed; its name is given."""

    name: Sha256

    @property
    def sha256(self) -> Sha256:
        return self.name


def fake_hotkey(name: str) -> Hotkey:
    """An address of the right form that belongs to nobody."""
    number = int.from_bytes(hashlib.sha256(name.encode()).digest(), "big")
    digits = []
    for _ in range(47):
        number, digit = divmod(number, len(_DIGITS))
        digits.append(_DIGITS[digit])
    return Hotkey("5" + "".join(digits))


def _manifest(spec: RunSpec, base_sha256: Sha256, offer: Offer, partitions: tuple[Sha256, ...]) -> Manifest:
    batch = spec.inner.batch_size
    steps = offer.mark - offer.first
    return Manifest(
        schema=SCHEMA,
        run=spec.run,
        signer=offer.session.hotkey,
        key=keys.delta_key(spec.run, offer.round, SHARD, offer.session.hotkey, offer.sha256),
        round=offer.round,
        base_revision=offer.base,
        base_sha256=base_sha256,
        shard=SHARD,
        delta=ObjectRef(offer.sha256, offer.wire_bytes),
        final=offer.final,
        tokens=offer.tokens,
        steps=steps,
        samples=(SampleRange(offer.round, offer.base, offer.first * batch, steps * batch),),
        trace_root=NO_TRACE,
        partitions=partitions,
    )


def _receipt(spec: RunSpec, leader: Hotkey, term: int, manifest: Manifest, sha256: Sha256, now_ms: int) -> Receipt:
    return Receipt(
        schema=SCHEMA,
        run=spec.run,
        signer=leader,
        round=manifest.round,
        shard=manifest.shard,
        hotkey=manifest.signer,
        manifest_sha256=sha256,
        delta_sha256=manifest.delta.sha256,
        term=term,
        received_ms=now_ms,
    )


@dataclass
class FastRecords:
    """Facts in memory, one shard."""

    spec: RunSpec
    leader: Hotkey
    queue: Queue
    state: RunState
    _hashes: _Hashes = field(default_factory=_Hashes)
    _bodies: dict[str, Callable[[], bytes]] = field(default_factory=dict)
    _kept: dict[RoundId, dict[str, StoredSubmission]] = field(default_factory=dict)

    @classmethod
    def begin(cls, spec: RunSpec, leader: Hotkey, queue: Queue, first: F32) -> FastRecords:
        """A run whose revision 0 is ``first``."""
        outer = OuterState.zero(len(first), spec.outer.momentum)
        snapshot = ObjectRef(weights_hash(first), 4 * len(first))
        shard = ShardState(SHARD, weights_hash(first), hash_outer(outer), None, snapshot)
        root = RevisionNode(Revision(0), None, None, (shard,), tokens_merged=0, seq=0)
        state = RunState(spec, 1, shard.weights_sha256, {root.revision: root}, root.revision, RoundId(0))
        return cls(spec, leader, queue, state)

    def append(self, data: EntryData, reason: str, new_term: bool = False) -> None:
        state = self.state
        entry = Entry(
            run=self.spec.run,
            signer=self.leader,
            seq=state.next_seq,
            prev=state.head_sha256,
            term=state.term + new_term,
            nonce="0" * 32,
            at_ms=self.queue.wall_ns() // 1_000_000,
            reason=reason,
            data=data,
            slot_sha256=sha256_hex(f"{state.head_sha256}{state.next_seq}".encode()),
        )
        self.state = apply_entry(state, entry)

    def base_sha256(self, revision: Revision) -> Sha256:
        return self._hashes.of(self.state, revision)

    def name(self, offer: Offer) -> None:
        """The one it has does, unless somebody will compare it with the bytes."""
        if not offer.plain:
            make_all([offer])
            offer.sha256 = sha256_hex(offer.body)

    def announce(self, offer: Offer) -> tuple[Manifest, SignedRecord]:
        manifest = _manifest(self.spec, self.base_sha256(offer.base), offer, (NO_TRACE,))
        name = sha256_hex(f"{offer.sha256}{offer.round}{offer.final}".encode())
        body: dict[str, Json] = {"signer": str(manifest.signer)}
        return manifest, _Named("manifest", body, "", name=name)

    def receipt(self, manifest: Manifest, record: SignedRecord) -> StoredSubmission:
        now_ms = self.queue.wall_ns() // 1_000_000
        receipt = _receipt(self.spec, self.leader, self.state.term, manifest, record.sha256, now_ms)
        return StoredSubmission(manifest, receipt, record, record)

    def put(self, offer: Offer) -> None:
        def body() -> bytes:
            make_all([offer])
            return offer.body

        assert offer.stored is not None
        self._bodies[offer.stored.manifest.key] = body

    def keep(self, stored: StoredSubmission) -> StoredSubmission:
        return self._kept.setdefault(stored.manifest.round, {}).setdefault(stored.manifest.key, stored)

    def kept(self, round_id: RoundId) -> list[StoredSubmission]:
        return list(self._kept.get(round_id, {}).values())

    def kept_for(self, manifest: Manifest) -> StoredSubmission | None:
        return self._kept.get(manifest.round, {}).get(manifest.key)

    def there(self, manifest: Manifest) -> bool:
        return manifest.key in self._bodies

    def read(self, manifest: Manifest) -> bytes | None:
        body = self._bodies.get(manifest.key)
        return None if body is None else body()

    def revision(self, plan: RoundFrozen, result: MergeResult) -> RevisionCommitted:
        revision = self.state.next_revision
        snapshot = None
        if revision % self.spec.round.snapshot_every == 0:
            snapshot = ObjectRef(result.weights_sha256, 4 * len(result.u))
        shard = ShardState(SHARD, result.weights_sha256, result.outer_sha256, result.update, snapshot)
        return RevisionCommitted(plan.round, revision, plan.base_revision, plan_tokens(self.spec, plan), (shard,))

    def resume(self) -> Resumed:
        return Resumed(sha256_hex(f"resume {self.state.next_seq}".encode()))

    def forget(self, before: RoundId) -> None:
        for round_id in [r for r in self._kept if r < before]:
            for key in self._kept.pop(round_id):
                self._bodies.pop(key, None)


class BucketRecords:
    """The real objects in a store in memory, one shard."""

    def __init__(
        self, spec: RunSpec, owner: Signer, leader: Signer, miners: Mapping[Hotkey, Signer], queue: Queue
    ) -> None:
        """Creates the run. ``miners`` sign their own manifests."""
        serial = itertools.count()
        self.spec = spec
        self.store = MemoryStore(queue)
        self._hashes = _Hashes()
        self._owner = owner
        self._leader = leader
        self._miners = miners
        self._queue = queue
        once = Patience(RetryPolicy(attempts=2), sleep=lambda _: None, uniform=lambda: 0.0)
        self._writer = LogWriter(self.store, spec, leader, queue, lambda: f"{next(serial):032x}", once)
        self._state = create_run(self.store, spec, owner, queue, lambda: "f" * 32, once)

    @property
    def state(self) -> RunState:
        return self._state

    def append(self, data: EntryData, reason: str, new_term: bool = False) -> None:
        try:
            self._state = self._writer.append(self._state, data, reason, self._state.term + new_term)
        except LostSlot as lost:  # our own entry, whose reply was lost in an earlier try
            self._state = lost.state
            raise Retryable("an earlier entry of ours was there already: looking again") from lost

    def base_sha256(self, revision: Revision) -> Sha256:
        return self._hashes.of(self.state, revision)

    def name(self, offer: Offer) -> None:
        make_all([offer])
        offer.sha256 = sha256_hex(offer.body)

    def announce(self, offer: Offer) -> tuple[Manifest, SignedRecord]:
        params = delta_params(self.spec.codec, offer.base)
        ranges = partition_hashes(offer.body, len(offer.target), params, self.spec.reduce.partitions)
        manifest = _manifest(self.spec, self.base_sha256(offer.base), offer, ranges)
        record = sign_manifest(manifest, self._miners[offer.session.hotkey])
        return open_manifest(record.to_json(), self.spec.run)

    def receipt(self, manifest: Manifest, record: SignedRecord) -> StoredSubmission:
        now_ms = self._queue.wall_ns() // 1_000_000
        receipt = _receipt(self.spec, self._leader.hotkey, self.state.term, manifest, record.sha256, now_ms)
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
        listed = self.store.list(keys.round_prefix(self.spec.run, round_id))
        return [self._read_manifest(info.key) for info in listed if info.key.endswith(".json")]

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

    def revision(self, plan: RoundFrozen, result: MergeResult) -> RevisionCommitted:
        return store_revision(self.store, self.state, plan, (result,)).commit

    def resume(self) -> Resumed:
        record = resume_command(self.state, self._owner, self._queue.wall_ns() // 1_000_000)
        return Resumed(put_command(self.store, record))

    def forget(self, before: RoundId) -> None:
        """A bucket forgets nothing."""

    def _read_manifest(self, key: str) -> StoredSubmission:
        return decode_submission(self.store.get(key, max_bytes=MAX_MANIFEST_BYTES).body, self.spec.run)


def _manifest_key(manifest: Manifest) -> str:
    return keys.manifest_key(manifest.run, manifest.round, manifest.shard, manifest.signer, manifest.delta.sha256)
