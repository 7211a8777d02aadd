"""A validator's report of one round: scores and the evidence they rest on, as a signed object in the bucket.

Reports are where scores live: a restarted validator reads its newest one and goes on from there. Times are integers
of milliseconds; losses are float32 in nats per token.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from common.errors import Rejected
from common.healthreport import HealthReport
from common.identity import SignedRecord, Signer, decode_record, sign_record
from common.spec import SCHEMA
from common.typed import ADDED, from_json, to_json
from common.units import Hotkey, Revision, RoundId, Uid

REPORT = "report"
MAX_REPORT_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class MemberReport:
    """One miner in one round."""

    hotkey: Hotkey
    uid: Uid
    registered_block: int
    decision: str
    """accepted, rejected (see code), deferred (the next plan takes it), or absent: no submission was receipted."""
    code: str
    tokens_trained: int
    """Grown by its own counters since the last report; what it claims."""
    tokens_merged: int
    """Validated tokens of its accepted submissions, late ones by their weight."""
    tokens_late: int = 0
    """Validated tokens, at full number, that were trained on the revision before the round's base."""
    timeliness: float | None = None
    """What its validated tokens counted for on average, since some came late; None when none did."""
    training_ms: int
    online_ms: int
    tokens_per_s: float
    """Its median speed while training."""
    session: str
    """Its process at that time, empty if it was never heard; with that process's totals as they stood, so that a
    restarted validator counts on from here and nothing is counted twice."""
    session_tokens: int
    session_training_ms: int
    session_online_ms: int
    assigned_drop: float
    """Loss of the base minus loss with its delta, on its own samples."""
    unseen_drop: float
    """The same on samples nobody was assigned."""
    quality: float
    """0..1, from the drops."""
    round_score: float
    score: float
    """Average over rounds: what weights on chain are made of."""
    why: str
    """The figures in one sentence."""
    proven_tokens_per_s: float = 0.0
    """Rate that its merged work has shown on the validator's clock: the usual rate is the middle one; 0 before."""
    lie: str = ""
    """The wrong mean of a partition that it handed in, and what is right: then it earns nothing in the round."""
    barred_until: int = 0
    """Before this round it reduces nothing: see ``barred_for``."""
    barred_for: str | None = field(default=None, metadata=ADDED)
    """wrong_mean: it handed one in; late: it let a round wait for its means; excused: it could not hand them in for
    several rounds, which is not held against it; empty: for what its validator does not know. None: it was not barred,
    or a version before this one tells of a wrong mean."""
    lateness: int | None = field(default=None, metadata=ADDED)
    """Grows with each reduction that it was late in, and shrinks with each clean one: the next bar's length."""
    excuses: int | None = field(default=None, metadata=ADDED)
    """Grows and shrinks the same with those that it was excused from; when it is too large, they count as late."""
    evidence: float = 0.0
    """Drop in loss of its deltas in times the usual one, smoothed over rounds: bounds its next claims; 0 before."""


@dataclass(frozen=True)
class Report:
    """One round."""

    schema: int
    run: str
    signer: Hotkey
    round: RoundId
    revision: Revision
    """Head after the round."""
    committed: bool
    heldout_loss_base: float
    heldout_loss: float
    """At the head after the round."""
    members: tuple[MemberReport, ...]
    health: HealthReport | None = field(default=None, metadata=ADDED)
    """Who is slow, and what is usual: of a validator that has led; None of one that only follows."""


def sign_report(report: Report, signer: Signer) -> SignedRecord:
    """Sign a report whose ``signer`` is the signer's hotkey."""
    if report.signer != signer.hotkey:
        raise ValueError("the report names another signer")
    body = to_json(report)
    assert isinstance(body, dict)
    return sign_record(REPORT, body, signer)


def decode_report(data: bytes, run: str) -> tuple[Report, SignedRecord]:
    """Read a report of foreign origin. Raises ``Rejected``: see ``open_record``, or ``bad_report``."""
    record = decode_record(REPORT, data, run, SCHEMA, MAX_REPORT_BYTES)
    report = from_json(Report, record.body, "bad_report")
    if len({member.hotkey for member in report.members}) != len(report.members):
        raise Rejected("bad_report", "a hotkey appears twice")
    return report, record
