"""Reports in the bucket: one signed object for each finished round, and the averages that go on from the newest one.

Invariant: a report's key holds the hash of its bytes. When two reports of one round exist (written twice around a
crash), the one whose key sorts first is taken by every reader.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from loguru import logger

from common import keys
from common.errors import Rejected
from common.identity import Signer
from common.reports import MAX_REPORT_BYTES, MemberReport, Report, decode_report, sign_report
from common.spec import SCHEMA
from common.store.port import ObjectStore
from common.units import Hotkey, Revision, RoundId, sha256_hex
from validator.ledger import Account, Totals, restored
from validator.scoring.policy import Score, Seat

MAX_WHY = 300


@dataclass(frozen=True)
class Books:
    """A miner's growth and speed at the end of a round."""

    growth: Totals
    account: Account
    tokens_per_s: float


@dataclass(frozen=True)
class Outcome:
    """What a report says about the round itself."""

    round: RoundId
    revision: Revision
    committed: bool
    heldout_loss_base: float
    heldout_loss: float


def make_report(
    run: str, signer: Hotkey, outcome: Outcome, scores: Sequence[Score], books: Mapping[Hotkey, Books]
) -> Report:
    """The report of a round, members in the order of their hotkeys."""
    nothing = Books(Totals(), Account(), 0.0)
    members = [_member(score, books.get(score.work.hotkey, nothing)) for score in scores]
    members.sort(key=lambda member: member.hotkey)
    return Report(
        schema=SCHEMA,
        run=run,
        signer=signer,
        round=outcome.round,
        revision=outcome.revision,
        committed=outcome.committed,
        heldout_loss_base=outcome.heldout_loss_base,
        heldout_loss=outcome.heldout_loss,
        members=tuple(members),
    )


def write_report(store: ObjectStore, report: Report, signer: Signer) -> str:
    """Put the report; its key."""
    body = sign_report(report, signer).encode()
    key = keys.report_key(report.run, report.signer, report.round, sha256_hex(body))
    store.put(key, body)
    return key


@dataclass(frozen=True)
class Found:
    """What a validator's reports in the bucket say to one that starts."""

    newest: Report | None = None
    first_loss: float | None = None
    """Held-out loss at revision 0, if the report of the first round is there."""


def find_reports(store: ObjectStore, run: str, validator: Hotkey) -> Found:
    """The latest report of this validator, and what its earliest tells of revision 0."""
    found: dict[int, str] = {}
    for info in store.list(keys.reports_prefix(run, validator)):
        parts = keys.parse_key(run, info.key)
        if parts is not None and parts.round_id is not None:
            found.setdefault(parts.round_id, info.key)
    readable = (_read(store, run, found[round_id], validator) for round_id in sorted(found, reverse=True))
    newest = next((report for report in readable if report is not None), None)
    if newest is None:
        return Found()
    first = _read(store, run, found[min(found)], validator)
    return Found(newest, first.heldout_loss_base if first and first.revision == int(first.committed) else None)


def averages(report: Report | None) -> dict[Seat, float]:
    """Everybody's average as the report left it."""
    return {(m.hotkey, m.registered_block): m.score for m in report.members} if report else {}


def accounts(report: Report | None) -> dict[Hotkey, Account]:
    """Everybody's books as the report left them."""
    if report is None:
        return {}
    return {
        m.hotkey: restored(m.session, Totals(m.session_tokens, m.session_training_ms / 1e3, m.session_online_ms / 1e3))
        for m in report.members
        if m.session
    }


def _read(store: ObjectStore, run: str, key: str, validator: Hotkey) -> Report | None:
    body = store.get(key, max_bytes=MAX_REPORT_BYTES).body
    try:
        report, _ = decode_report(body, run)
    except Rejected as refusal:
        logger.warning("{} is not a report: {}; the one before it counts", key, refusal)
        return None
    return report if report.signer == validator else None


def _member(score: Score, books: Books) -> MemberReport:
    work, growth, last = score.work, books.growth, books.account.last
    return MemberReport(
        hotkey=work.hotkey,
        uid=work.uid,
        registered_block=work.registered_block,
        decision=work.decision,
        code=work.code,
        tokens_trained=growth.tokens,
        tokens_merged=work.tokens if work.decision == "accepted" else 0,
        training_ms=round(growth.training_s * 1e3),
        online_ms=round(growth.online_s * 1e3),
        tokens_per_s=books.tokens_per_s,
        session=books.account.session,
        session_tokens=last.tokens,
        session_training_ms=round(last.training_s * 1e3),
        session_online_ms=round(last.online_s * 1e3),
        assigned_drop=score.assigned_drop,
        unseen_drop=score.unseen_drop,
        quality=score.quality,
        timeliness=score.timeliness,
        round_score=score.round_score,
        score=score.score,
        why=score.why[:MAX_WHY],
    )
