"""Log, submissions and revisions of a simulated run: kept as facts, or as the real bucket keeps them.

``FastRecords`` passes every entry through the log's rules and replay's effects, but signs and stores nothing: the
hashes in it are names, not proofs. ``bucket.BucketRecords`` keeps the real objects. Both give the same results.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from common import keys
from common.canonical import Json
from common.codec.params import F32
from common.identity import SignedRecord, Signer
from common.merge.outer import OuterState
from common.model.layout import weights_hash
from common.records import (
    Manifest,
    ObjectRef,
    Receipt,
    SampleRange,
    StoredSubmission,
)
from common.reductions import Reduced
from common.runlog.entries import EntryData, Resumed, RevisionCommitted, RoundFrozen, ShardState
from common.runlog.recompute import MergeResult, hash_outer
from common.runlog.rules import plan_tokens
from common.runlog.state import RevisionNode, RunState
from common.spec import SCHEMA, RunSpec
from common.units import Hotkey, Revision, RoundId, Sha256, ShardId, sha256_hex
from validator.simulator.events import Queue
from validator.simulator.logs import FactsLog, Log
from validator.simulator.work import Offer, make_all

SHARD = ShardId(0)
_DIGITS = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
NO_TRACE = sha256_hex(b"simulated")


class Hashes:
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

    log: Log

    def beside(self, leader: Signer, log: Log) -> Records:
        """The same submissions and revisions, as another validator writes and reads them."""
        ...

    @property
    def state(self) -> RunState:
        """What the log says."""
        ...

    def append(self, data: EntryData, reason: str, new_term: bool = False) -> None:
        """See ``Log``."""
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

    def revision(self, plan: RoundFrozen, result: MergeResult, reduced: Reduced | None = None) -> RevisionCommitted:
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


def make_manifest(spec: RunSpec, base_sha256: Sha256, offer: Offer, partitions: tuple[Sha256, ...]) -> Manifest:
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


def make_receipt(spec: RunSpec, leader: Hotkey, term: int, manifest: Manifest, sha256: Sha256, now_ms: int) -> Receipt:
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


def first_state(spec: RunSpec, first: F32) -> ShardState:
    """Revision 0 whose weights are ``first``."""
    outer = OuterState.zero(len(first), spec.outer.momentum)
    snapshot = ObjectRef(weights_hash(first), 4 * len(first))
    return ShardState(SHARD, weights_hash(first), hash_outer(outer), None, snapshot)


@dataclass
class FastRecords:
    """Facts in memory, one shard."""

    spec: RunSpec
    leader: Hotkey
    queue: Queue
    log: Log
    _hashes: Hashes = field(default_factory=Hashes)
    _bodies: dict[str, Callable[[], bytes]] = field(default_factory=dict)
    _kept: dict[RoundId, dict[str, StoredSubmission]] = field(default_factory=dict)

    @classmethod
    def begin(cls, spec: RunSpec, leader: Hotkey, queue: Queue, first: F32) -> FastRecords:
        """A run whose revision 0 is ``first``."""
        shard = first_state(spec, first)
        root = RevisionNode(Revision(0), None, None, (shard,), tokens_merged=0, seq=0)
        state = RunState(spec, 1, shard.weights_sha256, {root.revision: root}, root.revision, RoundId(0))
        return cls(spec, leader, queue, FactsLog(spec, leader, queue, state))

    def beside(self, leader: Signer, log: Log) -> FastRecords:
        """The same submissions, as another validator writes and reads them."""
        return FastRecords(self.spec, leader.hotkey, self.queue, log, _bodies=self._bodies, _kept=self._kept)

    @property
    def state(self) -> RunState:
        return self.log.state

    def append(self, data: EntryData, reason: str, new_term: bool = False) -> None:
        self.log.append(data, reason, new_term)

    def base_sha256(self, revision: Revision) -> Sha256:
        return self._hashes.of(self.state, revision)

    def name(self, offer: Offer) -> None:
        """The one it has does, unless somebody will compare it with the bytes."""
        if not offer.plain:
            make_all([offer])
            offer.sha256 = sha256_hex(offer.body)

    def announce(self, offer: Offer) -> tuple[Manifest, SignedRecord]:
        manifest = make_manifest(self.spec, self.base_sha256(offer.base), offer, (NO_TRACE,))
        name = sha256_hex(f"{offer.sha256}{offer.round}{offer.final}".encode())
        body: dict[str, Json] = {"signer": str(manifest.signer)}
        return manifest, _Named("manifest", body, "", name=name)

    def receipt(self, manifest: Manifest, record: SignedRecord) -> StoredSubmission:
        now_ms = self.queue.wall_ns() // 1_000_000
        receipt = make_receipt(self.spec, self.leader, self.state.term, manifest, record.sha256, now_ms)
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

    def revision(self, plan: RoundFrozen, result: MergeResult, reduced: Reduced | None = None) -> RevisionCommitted:
        revision = self.state.next_revision
        snapshot = None
        if revision % self.spec.round.snapshot_every == 0:
            snapshot = ObjectRef(result.weights_sha256, 4 * len(result.u))
        shard = ShardState(SHARD, result.weights_sha256, result.outer_sha256, result.update, snapshot)
        return RevisionCommitted(
            plan.round, revision, plan.base_revision, plan_tokens(self.spec, plan), (shard,), reduced
        )

    def resume(self) -> Resumed:
        return Resumed(sha256_hex(f"resume {self.state.next_seq}".encode()))

    def forget(self, before: RoundId) -> None:
        for round_id in [r for r in self._kept if r < before]:
            for key in self._kept.pop(round_id):
                self._bodies.pop(key, None)
