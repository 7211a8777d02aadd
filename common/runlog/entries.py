"""What the run log says: one frozen dataclass for each kind of entry, and the envelope's bytes.

An entry names the SHA-256 of the previous slot's bytes, void slots included, the leader's term and a nonce, so that two
writers never produce the same bytes and no history can be spliced.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from common import canonical
from common.canonical import Json
from common.errors import Rejected
from common.identity import SignedRecord, Signer, decode_record, sign_record
from common.records import ObjectRef
from common.reductions import Reduced
from common.spec import SCHEMA
from common.store.place import BucketPlace
from common.typed import ADDED, from_json, to_json
from common.units import Hotkey, Revision, RoundId, Sha256, ShardId, Uid, check_sha256, sha256_hex

LOG = "log"
MAX_ENTRY_BYTES = 1 << 20
NO_PREVIOUS = Sha256("0" * 64)


@dataclass(frozen=True)
class ShardState:
    """One shard of a revision."""

    shard: ShardId
    weights_sha256: Sha256
    """SHA-256 of the little-endian float32 tensors in name order."""
    outer_sha256: Sha256
    """SHA-256 of the outer state: momentum, then residual, as float32; absent ones count as no bytes."""
    update: ObjectRef | None
    """The update that made it; None at revision 0."""
    snapshot: ObjectRef | None
    """The full snapshot, when one was stored."""


@dataclass(frozen=True)
class Genesis:
    """The first entry, signed by the owner: the run and its revision 0."""

    spec_sha256: Sha256
    shards: tuple[ShardState, ...]


@dataclass(frozen=True)
class LeaderChanged:
    """A takeover: the signer leads from here, with the entry's term."""

    instance: str
    """Nonce of the leading process, as in the lease."""


@dataclass(frozen=True)
class RoundOpened:
    """A round began on a base revision."""

    round: RoundId
    base_revision: Revision


@dataclass(frozen=True)
class PlanMember:
    """One receipted submission and what the plan does with it."""

    shard: ShardId
    hotkey: Hotkey
    round: RoundId
    """The round that it was made for: the plan's own; an earlier one of the same base that was aborted; or, for a late
    submission, the round that made the plan's base."""
    base_revision: Revision
    """What it was made on: the plan's base or, for a late one, its parent."""
    uid: Uid
    registered_block: int
    delta: ObjectRef
    manifest_sha256: Sha256
    """Hash of the manifest's body."""
    tokens_claimed: int
    tokens: int
    """Validated tokens: what counts."""
    decision: Literal["accepted", "rejected", "deferred"]
    """deferred: announced in time, but not all there at the freeze; the next plan takes or rejects it."""
    code: str
    """Typed reason unless accepted; empty when accepted."""
    reason: str
    weight: float
    """Share in the divisor, float32."""
    scale: float
    """What the delta is multiplied by: weight × clip factor, float32."""


@dataclass(frozen=True)
class RoundFrozen:
    """The plan: of everybody who holds a receipt the newest submission, ordered by shard, hotkey and round.

    When the merge of a plan does harm, the next attempt takes its place: the same, with some of its members rejected.
    """

    round: RoundId
    base_revision: Revision
    attempt: int
    """0, 1, …: how many plans of this round came before."""
    damping: float
    """float32 in (0, 1] by which the mean is multiplied, since few took part: a part of its divisor."""
    members: tuple[PlanMember, ...]


@dataclass(frozen=True)
class RevisionCommitted:
    """The plan's merge became a revision."""

    round: RoundId
    revision: Revision
    parent: Revision
    tokens_merged: int
    shards: tuple[ShardState, ...]
    reduced: Reduced | None = field(default=None, metadata=ADDED)
    """What was taken from miners; None when the leader computed all of it."""


@dataclass(frozen=True)
class RoundAborted:
    """The round ended without a revision; the base stays."""

    round: RoundId
    base_revision: Revision
    code: str
    evidence: tuple[str, ...]
    """What was measured, one fact a line."""
    command_sha256: Sha256 | None = None
    """The owner's order to end it, an object under ``commands/``; None when nobody ordered it."""


@dataclass(frozen=True)
class Paused:
    """The leader opens no round until a person has looked."""

    code: str
    evidence: tuple[str, ...]
    command_sha256: Sha256 | None = None
    """The owner's order; None when the leader paused the run by itself."""


@dataclass(frozen=True)
class Resumed:
    """A person has looked: the owner's signed command says to go on."""

    command_sha256: Sha256
    """Names the object under ``commands/``."""
    cold: bool = False
    """Whether the pause was so long that miners start cold: fresh inner optimizer, learning rate warmed up again. The
    writer decides it, since no reader may compare wall clocks."""


@dataclass(frozen=True)
class RolledBack:
    """The owner ordered the run back to an earlier revision: it is the head now, and what was under way is void."""

    revision: Revision
    command_sha256: Sha256


@dataclass(frozen=True)
class LeadersChanged:
    """The owner says who may lead from here on; signed by the owner itself, not by the leader."""

    validators: tuple[Hotkey, ...]
    """All who may, in order of their addresses."""


@dataclass(frozen=True)
class StorageMoved:
    """The owner moves the run to another bucket: in the one that it leaves, nothing counts behind this entry."""

    source: BucketPlace
    target: BucketPlace
    public_read: bool
    """Whether objects can be read by plain GET there."""


@dataclass(frozen=True)
class Gc:
    """From here on these objects may be gone from the bucket: what only revisions before the floor need."""

    floor: Revision
    """The oldest revision that stays whole. Snapshots of those before it go, but for that of revision 0."""
    deltas_before: RoundId
    """Deltas of all rounds before this one go, and the manifests of those that were replaced."""
    updates_before: RoundId
    """Updates, partition means and reductions of all rounds before this one go."""


EntryData = (
    Genesis
    | LeaderChanged
    | LeadersChanged
    | StorageMoved
    | RoundOpened
    | RoundFrozen
    | RevisionCommitted
    | RoundAborted
    | Paused
    | Resumed
    | RolledBack
    | Gc
)
KINDS: dict[str, type[EntryData]] = {
    "genesis": Genesis,
    "leader_changed": LeaderChanged,
    "leaders_changed": LeadersChanged,
    "storage_moved": StorageMoved,
    "round_opened": RoundOpened,
    "round_frozen": RoundFrozen,
    "revision_committed": RevisionCommitted,
    "round_aborted": RoundAborted,
    "paused": Paused,
    "resumed": Resumed,
    "rolled_back": RolledBack,
    "gc": Gc,
}
_NAMES = {kind: name for name, kind in KINDS.items()}


@dataclass(frozen=True)
class Entry:
    """One entry, parsed, with the hash of the bytes it was read from."""

    run: str
    signer: Hotkey
    seq: int
    prev: Sha256
    """SHA-256 of the previous slot's bytes."""
    term: int
    nonce: str
    at_ms: int
    """Wall clock of the writer, for people; nothing is decided by it."""
    reason: str
    """Why, in plain words."""
    data: EntryData
    slot_sha256: Sha256
    """SHA-256 of this slot's bytes."""

    @property
    def kind(self) -> str:
        return _NAMES[type(self.data)]


@dataclass(frozen=True)
class Draft:
    """An entry before it is signed."""

    run: str
    seq: int
    prev: Sha256
    term: int
    nonce: str
    at_ms: int
    reason: str
    data: EntryData


def encode_entry(draft: Draft, signer: Signer) -> bytes:
    """Sign a draft; the bytes to put into slot ``draft.seq``."""
    body: dict[str, Json] = {
        "schema": SCHEMA,
        "run": draft.run,
        "kind": _NAMES[type(draft.data)],
        "seq": draft.seq,
        "prev": draft.prev,
        "term": draft.term,
        "nonce": draft.nonce,
        "at_ms": draft.at_ms,
        "reason": draft.reason,
        "data": to_json(draft.data),
    }
    return sign_record(LOG, body, signer).encode()


@dataclass(frozen=True)
class _Body:
    schema: int
    run: str
    signer: Hotkey
    kind: str
    seq: int
    prev: Sha256
    term: int
    nonce: str
    at_ms: int
    reason: str


def decode_entry(data: bytes, run: str) -> Entry:
    """Read foreign bytes of a slot. Total: raises only ``Rejected``, with the code of what is wrong."""
    record: SignedRecord = decode_record(LOG, data, run, SCHEMA, MAX_ENTRY_BYTES)
    table = dict(record.body)
    payload = table.pop("data", None)
    body = from_json(_Body, table, "bad_entry")
    kind = KINDS.get(body.kind)
    if kind is None:
        raise Rejected("unknown_kind", f"entry of kind {body.kind[:40]}; update brigade")
    parsed: EntryData = from_json(kind, payload, "bad_entry")
    return Entry(
        run=body.run,
        signer=body.signer,
        seq=body.seq,
        prev=body.prev,
        term=body.term,
        nonce=body.nonce,
        at_ms=body.at_ms,
        reason=body.reason,
        data=parsed,
        slot_sha256=sha256_hex(data),
    )


def revision_hash(shards: tuple[ShardState, ...]) -> Sha256:
    """The hash of a whole revision: over the weights' hashes of its shards in order."""
    for shard in shards:
        check_sha256(shard.weights_sha256)
    return sha256_hex(canonical.dumps([str(shard.weights_sha256) for shard in shards]))
