"""A validator's signed word that a leader or a miner did wrong, with all that a third party needs to check it again.

It lies among the validator's reports. What it accuses is a slot of the log, named by number and hash, or a miner whose
signed word that slot names; the rest is in the bucket, so that ``brigade run verify`` needs nobody's word for it. Four
kinds, of which each conviction has one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from common import canonical
from common.errors import Rejected
from common.identity import SignedRecord, Signer, decode_record, sign_record
from common.records import MAX_MANIFEST_BYTES, StoredSubmission, decode_submission
from common.runlog.reduced import WrongMean
from common.runlog.remerge import Difference
from common.spec import SCHEMA
from common.typed import ADDED, from_json, to_json
from common.units import Hotkey, Revision, RoundId, Sha256, ShardId, check_sha256

CONVICTION = "conviction"
MAX_CONVICTION_BYTES = 2 * MAX_MANIFEST_BYTES
MAX_TOLD = 500
MAX_CODE = 64


@dataclass(frozen=True)
class LeftOut:
    """A plan that names nothing of a miner that its leader had given a receipt in the same term."""

    submission: str
    """Canonical JSON of manifest and receipt, both signed, as a manifest object has it."""

    def opened(self, run: str) -> StoredSubmission:
        """Both, with their signatures checked. Raises ``Rejected``."""
        return decode_submission(self.submission.encode(), run)


@dataclass(frozen=True)
class MergedWrongly:
    """A commit whose hashes are not those of its own plan."""

    revision: Revision
    differences: tuple[Difference, ...]


@dataclass(frozen=True)
class RejectedFalsely:
    """A plan that rejects a delta for what it is not."""

    shard: ShardId
    hotkey: Hotkey
    made_for: RoundId
    """The round that the delta was made for."""
    delta_sha256: Sha256
    code: str
    """What the plan rejects it for, at most ``MAX_CODE`` characters of it."""

    def __post_init__(self) -> None:
        check_sha256(self.delta_sha256)


@dataclass(frozen=True)
class ReducedWrongly:
    """A miner's signed mean of a partition that is not the mean of the plan's deltas. The slot is the plan's."""

    mean: WrongMean
    revision: Revision | None
    """That holds it, since all owners of the partition told the same; None when it was found before the commit."""
    rise: float
    """By how much that revision raises the held-out loss, in nats per token, float32, as the signer measured it; 0 when
    there is none."""


Fault = LeftOut | MergedWrongly | RejectedFalsely | ReducedWrongly


@dataclass(frozen=True)
class Conviction:
    """One fault of one leader or miner. ValueError unless it has one kind."""

    schema: int
    run: str
    signer: Hotkey
    """The validator that found it."""
    leader: Hotkey
    """Who wrote the slot."""
    round: RoundId
    seq: int
    """The slot of the log that is wrong: a plan, or a commit."""
    slot_sha256: Sha256
    told: str
    """What was done wrong, in a sentence."""
    left_out: LeftOut | None = None
    merged_wrongly: MergedWrongly | None = None
    rejected_falsely: RejectedFalsely | None = None
    reduced_wrongly: ReducedWrongly | None = field(default=None, metadata=ADDED)

    def __post_init__(self) -> None:
        check_sha256(self.slot_sha256)
        faults = (self.left_out, self.merged_wrongly, self.rejected_falsely, self.reduced_wrongly)
        if sum(fault is not None for fault in faults) != 1:
            raise ValueError("a conviction has one of left_out, merged_wrongly, rejected_falsely and reduced_wrongly")
        if min(self.round, self.seq) < 0 or len(self.told) > MAX_TOLD:
            raise ValueError(f"round and slot are at least 0, and told has at most {MAX_TOLD} characters")

    @property
    def kind(self) -> str:
        """left_out, merged_wrongly, rejected_falsely or reduced_wrongly."""
        kinds = ("left_out", "merged_wrongly", "rejected_falsely", "reduced_wrongly")
        return next(kind for kind in kinds if getattr(self, kind) is not None)

    @property
    def accused(self) -> Hotkey:
        """Who did wrong: the leader that wrote the slot, or the miner whose word it names."""
        return self.leader if self.reduced_wrongly is None else self.reduced_wrongly.mean.hotkey


def left_out(submission: StoredSubmission) -> LeftOut:
    """The evidence that a manifest and its receipt are."""
    return LeftOut(submission.encode().decode())


def sign_conviction(conviction: Conviction, signer: Signer) -> SignedRecord:
    """Sign a conviction whose ``signer`` is the signer's hotkey."""
    if conviction.signer != signer.hotkey:
        raise ValueError("the conviction names another signer")
    body = to_json(conviction)
    assert isinstance(body, dict)
    return sign_record(CONVICTION, body, signer)


def decode_conviction(data: bytes, run: str) -> Conviction:
    """Read a conviction of foreign origin. Raises ``Rejected``: see ``open_record``, or ``bad_conviction``."""
    record = decode_record(CONVICTION, data, run, SCHEMA, MAX_CONVICTION_BYTES)
    conviction = from_json(Conviction, record.body, "bad_conviction")
    if conviction.left_out is not None:
        _check_submission(conviction)
    return conviction


def _check_submission(conviction: Conviction) -> None:
    assert conviction.left_out is not None
    receipt = conviction.left_out.opened(conviction.run).receipt
    if (receipt.signer, receipt.round) != (conviction.leader, conviction.round):
        raise Rejected("bad_conviction", "its receipt is another leader's, or of another round")


def submission_of(manifest: canonical.Json, receipt: canonical.Json, run: str) -> StoredSubmission:
    """Manifest and receipt as they came over the wire. Raises ``Rejected`` as ``decode_submission``."""
    try:
        data = canonical.dumps({"manifest": manifest, "receipt": receipt})
    except ValueError as error:
        raise Rejected("bad_manifest", f"manifest and receipt have no canonical form: {error}") from None
    return decode_submission(data, run)
