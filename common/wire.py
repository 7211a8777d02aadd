"""Messages between miner and validator over HTTP: what a stranger's bytes are parsed into.

Strict pydantic models: no unknown fields, no coercion, every string and number bounded. Bodies are JSON; bulk bytes
never travel here, only hashes and URLs.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)

from common.errors import Rejected
from common.probes import MAX_PROBE_BYTES, MIN_PROBE_BYTES
from common.reductions import MAX_COPIES
from common.store.multipart import MAX_PARTS, MD5_PATTERN
from common.units import SHA256_PATTERN

MAX_REQUEST_BYTES = 512 * 1024
MAX_REPLY_BYTES = 1 << 20

MAX_PARTS_A_REPLY = 128
"""Of at most 4 KiB of URL each, so that they fit."""

MAX_STALLS = 16
MAX_TOTAL_TOKENS = 2**48
MAX_TOTAL_S = 1e9  # thirty years

Count = Annotated[int, Field(ge=0, le=2**53 - 1)]
Quantity = Annotated[float, Field(ge=0, le=1e15, allow_inf_nan=False)]
Digest = Annotated[str, Field(pattern=SHA256_PATTERN)]
PartDigest = Annotated[str, Field(pattern=MD5_PATTERN)]
Text = Annotated[str, Field(max_length=300)]
Address = Annotated[str, Field(min_length=40, max_length=60)]
Token = Annotated[str, Field(pattern=r"^[0-9a-f]{16,64}$")]
ProbeNonce = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]


class Message(BaseModel):
    """Base of all messages."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Phase(StrEnum):
    """What a miner is doing. A heartbeat is sent in every one of them."""

    STARTING = "starting"
    SYNCING = "syncing"
    TRAINING = "training"
    ENCODING = "encoding"
    UPLOADING = "uploading"
    WAITING = "waiting"
    APPLYING = "applying"
    DRAINING = "draining"


class UploadProgress(Message):
    """The transfer under way, as the miner sees it; the validator measures for itself."""

    size_bytes: Count
    sent_bytes: Count
    rate_bps: Quantity


class Counters(Message):
    """Totals of one process (session) since it started; the validator adds up what they grew by."""

    tokens: Annotated[int, Field(ge=0, le=MAX_TOTAL_TOKENS)]
    training_s: Annotated[float, Field(ge=0, le=MAX_TOTAL_S, allow_inf_nan=False)]
    online_s: Annotated[float, Field(ge=0, le=MAX_TOTAL_S, allow_inf_nan=False)]


class Heartbeat(Message):
    """POST /v1/heartbeat."""

    session: Token
    """Random name of the miner's process."""
    seq: Count
    phase: Annotated[Phase, Field(strict=False)]
    round: Count | None
    """Round that the miner works for."""
    revision: Count | None
    """Revision that it holds."""
    weights_sha256: Digest | None
    """Revision hash that it proved after applying."""
    round_tokens: Count
    """Tokens trained for this round so far; after its final submission, those in it."""
    round_steps: Count
    ahead_tokens: Count
    """Trained since the final submission of this round: they belong to the next."""
    tokens_per_s: Quantity
    """Its own median speed while training."""
    loss: Quantity | None
    counters: Counters
    upload: UploadProgress | None
    note: Text
    """Last trouble, for people; empty when there is none."""


class RoundView(Message):
    """The round as the leader sees it."""

    round: Count
    base_revision: Count
    phase: Literal["open", "closing", "frozen", "reduced", "committed", "aborted"]
    instruction: Literal["train", "submit", "wait"]
    seconds_left: Quantity
    """Until the next deadline of this phase."""
    freeze_in_s: Quantity
    """Until uploads must be there, as far as the leader can tell: before the round closes an estimate."""
    tokens: Count
    target_tokens: Count


class MeanDuty(Message):
    """One partition of one shard whose mean the miner is to compute."""

    shard: Count
    partition: Count
    inputs_sha256: Digest
    """What it will have read when it has read it right: see ``common.merge.partition``."""


class ReduceView(Message):
    """What the leader wants of a miner in the reduction of a plan: what it has not handed in yet."""

    round: Count
    plan_sha256: Digest
    """Hash of the slot that holds the plan."""
    duties: Annotated[tuple[MeanDuty, ...], Field(max_length=MAX_COPIES)]
    seconds_left: Quantity
    """Afterwards the leader computes them itself."""


class UploadTarget(Message):
    """One presigned put. Length and checksum are part of its signature."""

    url: Annotated[str, Field(max_length=4096)]
    headers: Annotated[dict[str, str], Field(max_length=16)]
    expires_in_s: Quantity


class ProbeOrder(Message):
    """One small transfer that measures the miner's link to the storage; see ``common.probes``. Told once."""

    nonce: ProbeNonce
    kind: Literal["uplink", "downlink"]
    size_bytes: Annotated[int, Field(ge=MIN_PROBE_BYTES, le=MAX_PROBE_BYTES)]
    upload: UploadTarget | None = None
    """Of the uplink: where the bytes go. Of the downlink there is none: the miner reads its own key."""
    seconds_left: Annotated[float, Field(ge=0, le=3600, allow_inf_nan=False)]
    """Until the answer must be there."""

    @model_validator(mode="after")
    def _has_a_place(self) -> ProbeOrder:
        if (self.kind == "uplink") != (self.upload is not None):
            raise ValueError("a probe of the uplink, and no other, says where its bytes go")
        return self


class HeartbeatReply(Message):
    """What the leader answers: a hint where the log stands, never a truth of its own."""

    server_ns: Annotated[int, Field(ge=0, le=2**63 - 1)]
    leader: Address
    instance: Token
    """The leading process: a change tells a miner to submit again what it holds a receipt for."""
    term: Count
    next_seq: Count
    """Slots that the log has: read it up to here."""
    round: RoundView | None
    delivered: bool
    """Whether this miner's submission for the round has been checked."""
    score: Quantity | None
    stall: Text = ""
    """Why the run stands still, so that nobody new should begin; empty while newcomers are of use."""
    reduce: ReduceView | None = None
    """Duties in the butterfly; None when there are none."""
    probe: ProbeOrder | None = None
    """A transfer to make now; None, and not even sent, when there is none."""

    @model_serializer(mode="wrap")
    def _without_no_order(self, make: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Messages have no unknown fields: a miner that does not know probes must be able to read every other reply."""
        made: dict[str, Any] = make(self)
        if self.probe is None:
            made.pop("probe", None)
        return made


class SubmissionRequest(Message):
    """POST /v1/submissions: the signed manifest, as envelope."""

    manifest: dict[str, Any]
    parts: Annotated[tuple[PartDigest, ...], Field(max_length=MAX_PARTS)] = ()
    """MD5 of each part, in order, of a delta that is larger than ``PART_BYTES``; else none."""


class PartTarget(Message):
    """One presigned put of one part. Number, length and checksum are part of its signature."""

    number: Annotated[int, Field(ge=1, le=MAX_PARTS)]
    url: Annotated[str, Field(max_length=4096)]
    headers: Annotated[dict[str, str], Field(max_length=16)]


class MultipartTarget(Message):
    """Where to put the parts that are not there yet: the first of them, as many as fit into a reply."""

    parts: Annotated[tuple[PartTarget, ...], Field(max_length=MAX_PARTS_A_REPLY)]
    missing: Annotated[int, Field(ge=0, le=MAX_PARTS)]
    """How many are missing in all: when there are more than named here, post the manifest again after these."""
    expires_in_s: Quantity


class SubmissionReply(Message):
    """Receipt envelope and where to put the bytes; no target when the object is already there and checked."""

    receipt: dict[str, Any]
    upload: UploadTarget | MultipartTarget | None


class CompleteRequest(Message):
    """POST /v1/submissions/complete: the object has been put."""

    round: Count
    shard: Count
    delta_sha256: Digest


class CompleteReply(Message):
    """Whether the leader read the object and found it as announced."""

    accepted: bool
    code: Annotated[str, Field(max_length=64)]
    reason: Text


class ReductionRequest(Message):
    """POST /v1/reductions: the signed word for means, as envelope. Posted before the means are put, and again after."""

    reduction: dict[str, Any]


class MeanTarget(Message):
    """Where the mean of one partition goes."""

    shard: Count
    partition: Count
    upload: UploadTarget


class ReductionReply(Message):
    """What is not there yet; nothing when all of it is there, and counts."""

    uploads: Annotated[tuple[MeanTarget, ...], Field(max_length=MAX_COPIES)]


class ProbeAnswer(Message):
    """POST /v1/probes: the transfer that was ordered has been made, or can't be made now."""

    nonce: ProbeNonce
    busy: bool = False
    """The link was in use by the miner's own work, so that the transfer would tell nothing."""
    proof: Digest | None = None
    """Of the downlink: see ``common.probes.downlink_proof``."""


class ProbeReply(Message):
    """Whether the answer counts, and if not, why."""

    counted: bool
    reason: Text


class ComplaintRequest(Message):
    """POST /v1/complaints: a plan names nothing of the sender, though its leader had given it this receipt."""

    manifest: dict[str, Any]
    receipt: dict[str, Any]


class ComplaintReply(Message):
    """Whether the leader is convicted by it, and why or why not."""

    convicted: bool
    reason: Text


class ErrorReply(Message):
    """Body of every answer that is not 200."""

    code: Annotated[str, Field(max_length=64)]
    message: Annotated[str, Field(max_length=1000)]
    retry_after_s: Quantity | None = None


class Health(Message):
    """GET /v1/health, open to everybody; clients take their time from it."""

    run: Annotated[str, Field(max_length=48)]
    spec_sha256: Digest
    hotkey: Address
    server_ns: Annotated[int, Field(ge=0, le=2**63 - 1)]
    leading: bool
    version: Annotated[str, Field(max_length=32)]


class MinerStatus(Message):
    """One miner as the validator sees it."""

    hotkey: Address
    uid: Count
    live: bool
    phase: Annotated[Phase, Field(strict=False)]
    round_tokens: Count
    tokens_per_s: Quantity
    upload: UploadProgress | None
    delivered: bool
    score: Quantity | None
    silent_s: Quantity
    """Since its last heartbeat, on the validator's clock."""
    note: Text
    duties: Text = ""
    """Why it has no part in the reduction, and until which round; empty while it may have some."""
    health: Text = ""
    """What is done about it since it is slow, why, and the way back; empty while it is not."""


class StallView(Message):
    """Something that makes no progress, as the validator's watchdog sees it."""

    code: Annotated[str, Field(max_length=64)]
    since_s: Quantity
    """So long it has stood still."""
    text: Annotated[str, Field(max_length=1000)]
    """What stands still, why, what it waits for, what an operator can do."""


class Status(Message):
    """GET /v1/status, open to everybody: what `brigade status` and the live table show."""

    run: Annotated[str, Field(max_length=48)]
    spec_sha256: Digest
    hotkey: Address
    server_ns: Annotated[int, Field(ge=0, le=2**63 - 1)]
    leading: bool
    term: Count
    next_seq: Count
    head_revision: Count
    rounds_committed: Count
    rounds_aborted: Count
    round: RoundView | None
    waiting_for: Text
    """What the validator waits for right now, in plain words."""
    paused: Annotated[str, Field(max_length=1000)]
    """Why the run stands still and what its owner can type to go on; empty while it does not."""
    convicted: Annotated[list[Text], Field(max_length=8)] = []
    """What this validator has found against leaders, each in a plain sentence."""
    heldout_loss_first: Quantity | None
    """Nats per token at revision 0."""
    heldout_loss_head: Quantity | None
    """Nats per token at the newest revision that was evaluated."""
    reported_round: Count | None
    """Newest round whose report is in the bucket."""
    weights_set_block: Count | None
    """Block of this validator's last weights on chain."""
    weights_round: Count | None
    """Newest reported round whose scores are in the weights on chain."""
    miners: Annotated[list[MinerStatus], Field(max_length=256)]
    stalls: Annotated[list[StallView], Field(max_length=MAX_STALLS)] = []
    """What stands still, the most important first; empty while all goes on."""


class Findings(Message):
    """GET /v1/findings, open to everybody: what `brigade health` and `brigade explain` show."""

    run: Annotated[str, Field(max_length=48)]
    hotkey: Address
    leading: bool
    """Whether this validator sees the miners now; one that follows tells what it saw last, if it ever led."""
    health: dict[str, Any] | None
    """A ``common.healthreport.HealthReport``, as signed reports hold it; None where nothing is known."""


class ReportIndex(Message):
    """GET /v1/reports, open to everybody: the signed reports that a validator without write access keeps."""

    run: Annotated[str, Field(max_length=48)]
    hotkey: Address
    names: Annotated[list[Annotated[str, Field(max_length=100)]], Field(max_length=1000)]
    """The newest, the newest first; each is at /v1/reports/<name> and holds the hash of its bytes."""


M = TypeVar("M", bound=Message)


def parse(kind: type[M], data: bytes, max_bytes: int = MAX_REQUEST_BYTES) -> M:
    """Parse foreign bytes. Total: raises only ``Rejected('too_large' | 'bad_message')``, naming the first bad field."""
    if len(data) > max_bytes:
        raise Rejected("too_large", f"{len(data)} bytes where at most {max_bytes} are allowed")
    try:
        return kind.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])[:100]
        raise Rejected("bad_message", f"{kind.__name__} {where}: {first['msg'][:150]}") from None
