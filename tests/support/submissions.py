"""Receipted submissions for tests, made in microseconds: nothing is really signed."""

from __future__ import annotations

from common import keys
from common.identity import SignedRecord
from common.records import Manifest, ObjectRef, Receipt, SampleRange, StoredSubmission
from common.typed import to_json
from common.units import Coldkey, Hotkey, Revision, RoundId, Sha256, ShardId, Uid, sha256_hex
from validator.membership import Seat
from validator.submissions import Submission

RUN = "demo"
NO_ROOT = Sha256("0" * 64)


def manifest_of(
    hotkey: str,
    *,
    round_id: int = 3,
    base: int = 2,
    tokens: int = 100,
    final: bool = False,
    shard: int = 0,
    body: bytes | None = None,
    size: int = 1000,
) -> Manifest:
    """A manifest; the delta's hash is that of ``body``, or else made of everything that is said of it."""
    told = f"{hotkey} {round_id} {base} {tokens} {shard}".encode()
    delta = ObjectRef(sha256_hex(told if body is None else body), size if body is None else len(body))
    return Manifest(
        schema=1,
        run=RUN,
        signer=Hotkey(hotkey),
        key=keys.delta_key(RUN, RoundId(round_id), ShardId(shard), Hotkey(hotkey), delta.sha256),
        round=RoundId(round_id),
        base_revision=Revision(base),
        base_sha256=NO_ROOT,
        shard=ShardId(shard),
        delta=delta,
        final=final,
        tokens=tokens,
        steps=max(1, tokens // 32),
        samples=(SampleRange(RoundId(round_id), Revision(base), 0, max(1, tokens // 16)),),
        trace_root=NO_ROOT,
        partitions=(NO_ROOT,),
    )


def record_of(fact: Manifest | Receipt, kind: str) -> SignedRecord:
    """Its record, with a signature that nobody checks."""
    body = to_json(fact)
    assert isinstance(body, dict)
    return SignedRecord(kind, body, "00" * 64)


def submission_of(manifest: Manifest, *, received_ms: int = 0, block: int = 1, coldkey: str = "") -> Submission:
    """The submission that a leader makes of a manifest."""
    record = record_of(manifest, "manifest")
    receipt = Receipt(
        schema=1,
        run=RUN,
        signer=Hotkey("leader"),
        round=manifest.round,
        shard=manifest.shard,
        hotkey=manifest.signer,
        manifest_sha256=record.sha256,
        delta_sha256=manifest.delta.sha256,
        term=1,
        received_ms=received_ms,
    )
    stored = StoredSubmission(manifest, receipt, record, record_of(receipt, "receipt"))
    seat = Seat(manifest.signer, Coldkey(coldkey or f"cold-{manifest.signer}"), Uid(1), block)
    return Submission(stored, seat, received_ms / 1000, manifest.final)
