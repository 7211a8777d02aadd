"""The signed records that a submission consists of: the miner's manifest and the leader's receipt.

A manifest announces one delta object before a byte of it is sent; the receipt proves that the leader heard of it in
time. Both lie beside the delta in the bucket, in one object, once the leader has checked the delta's bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

from common import canonical, keys
from common.canonical import Json
from common.errors import Rejected
from common.identity import SignedRecord, Signer, open_record, sign_record
from common.spec import MAX_PARTITIONS, SCHEMA
from common.typed import from_json, to_json
from common.units import Hotkey, Revision, RoundId, Sha256, ShardId, check_sha256

MANIFEST = "manifest"
RECEIPT = "receipt"
MAX_MANIFEST_BYTES = 256 * 1024
MAX_SAMPLE_RANGES = 64


@dataclass(frozen=True)
class ObjectRef:
    """An immutable object by content."""

    sha256: Sha256
    size_bytes: int

    def __post_init__(self) -> None:
        check_sha256(self.sha256)
        if self.size_bytes < 0:
            raise ValueError("size_bytes must not be negative")


@dataclass(frozen=True)
class SampleRange:
    """Samples that a miner trained on, one after the other, in its stream of one round."""

    round: RoundId
    base_revision: Revision
    """Together they name the stream: hash of that revision, round, hotkey."""
    start: int
    count: int

    def __post_init__(self) -> None:
        if min(self.round, self.base_revision, self.start) < 0 or self.count < 1:
            raise ValueError("a sample range has a round, a base and a start from 0 on, and at least one sample")


@dataclass(frozen=True)
class Manifest:
    """What a miner says about one delta. Raises ValueError on impossible numbers."""

    schema: int
    run: str
    signer: Hotkey
    key: str
    """Where the delta goes; the leader computes it too and refuses any other."""
    round: RoundId
    base_revision: Revision
    base_sha256: Sha256
    """Hash of the base revision, as ``revision_hash`` makes it."""
    shard: ShardId
    delta: ObjectRef
    final: bool
    """False for a drip: what the miner has so far, to be replaced by a later submission of the same round."""
    tokens: int
    steps: int
    samples: tuple[SampleRange, ...]
    """What the delta was trained on, in order: training goes on through a merge, so the first steps may have been
    taken on the streams of earlier rounds."""
    trace_root: Sha256
    """Merkle root of the per-step trace (loss and gradient norm), for re-execution of a sample of the work."""
    partitions: tuple[Sha256, ...]
    """SHA-256 of each partition's byte range of the delta, in order."""

    def __post_init__(self) -> None:
        for digest in (self.base_sha256, self.trace_root, *self.partitions):
            check_sha256(digest)
        if min(self.round, self.base_revision, self.shard, self.tokens, self.steps) < 0:
            raise ValueError("counts must not be negative")
        if len(self.samples) > MAX_SAMPLE_RANGES:
            raise ValueError(f"samples must be at most {MAX_SAMPLE_RANGES} ranges")
        if any(part.round > self.round or part.base_revision > self.base_revision for part in self.samples):
            raise ValueError("no sample comes from a later round or revision than the manifest's own")
        if not 1 <= len(self.partitions) <= MAX_PARTITIONS:
            raise ValueError(f"partitions must be 1 to {MAX_PARTITIONS}")

    @property
    def sample_count(self) -> int:
        """Samples of all ranges."""
        return sum(part.count for part in self.samples)

    def expected_key(self) -> str:
        return keys.delta_key(self.run, self.round, self.shard, self.signer, self.delta.sha256)


@dataclass(frozen=True)
class Receipt:
    """The leader's proof that it heard of a submission while the round took them."""

    schema: int
    run: str
    signer: Hotkey
    round: RoundId
    shard: ShardId
    hotkey: Hotkey
    manifest_sha256: Sha256
    delta_sha256: Sha256
    term: int
    received_ms: int
    """Wall clock of the leader, for people."""


@dataclass(frozen=True)
class StoredSubmission:
    """Content of a manifest object: manifest and receipt, each as parsed and as signed."""

    manifest: Manifest
    receipt: Receipt
    manifest_record: SignedRecord
    receipt_record: SignedRecord

    def encode(self) -> bytes:
        return canonical.dumps({"manifest": self.manifest_record.to_json(), "receipt": self.receipt_record.to_json()})


def sign_manifest(manifest: Manifest, signer: Signer) -> SignedRecord:
    """Sign a manifest whose ``signer`` is the signer's hotkey."""
    return _sign(MANIFEST, manifest, signer)


def sign_receipt(receipt: Receipt, signer: Signer) -> SignedRecord:
    """Sign a receipt whose ``signer`` is the signer's hotkey."""
    return _sign(RECEIPT, receipt, signer)


def open_manifest(value: Json, run: str) -> tuple[Manifest, SignedRecord]:
    """Check a manifest of foreign origin. Raises ``Rejected``: see ``open_record``, or ``bad_manifest``."""
    record = open_record(MANIFEST, value, run, SCHEMA)
    manifest = from_json(Manifest, record.body, "bad_manifest")
    if manifest.key != manifest.expected_key():
        raise Rejected("wrong_key", "a delta goes to the key made of its run, round, shard, hotkey and hash")
    return manifest, record


def open_receipt(value: Json, run: str) -> tuple[Receipt, SignedRecord]:
    """Check a receipt of foreign origin. Raises ``Rejected``: see ``open_record``, or ``bad_receipt``."""
    record = open_record(RECEIPT, value, run, SCHEMA)
    return from_json(Receipt, record.body, "bad_receipt"), record


def decode_submission(data: bytes, run: str) -> StoredSubmission:
    """Read a manifest object and check that its receipt belongs to its manifest."""
    table = canonical.loads_object(data, MAX_MANIFEST_BYTES)
    if table.keys() != {"manifest", "receipt"}:
        raise Rejected("bad_manifest", "a manifest object holds manifest and receipt")
    manifest, manifest_record = open_manifest(table["manifest"], run)
    receipt, receipt_record = open_receipt(table["receipt"], run)
    facts = (receipt.round, receipt.shard, receipt.hotkey, receipt.delta_sha256, receipt.manifest_sha256)
    claimed = (manifest.round, manifest.shard, manifest.signer, manifest.delta.sha256, manifest_record.sha256)
    if facts != claimed:
        raise Rejected("bad_receipt", "the receipt belongs to another manifest")
    return StoredSubmission(manifest, receipt, manifest_record, receipt_record)


def _sign(kind: str, fact: Manifest | Receipt, signer: Signer) -> SignedRecord:
    if fact.signer != signer.hotkey:
        raise ValueError(f"the {kind} names another signer")
    body = to_json(fact)
    assert isinstance(body, dict)
    return sign_record(kind, body, signer)
