"""Reports in the bucket: one signed object for each finished round, and the averages that go on from the newest one.

Invariant: a report's key holds the hash of its bytes. When two reports of one round exist (written twice around a
crash), the one whose key sorts first is taken by every reader, which is why there is only one: ``read_reports``. A
report that vanished or can't be read is told and passed by; it never stops a start.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from loguru import logger

from common import keys
from common.errors import Rejected
from common.healthreport import HealthReport
from common.identity import Signer
from common.merge.butterfly import WRONG_MEAN
from common.reports import MAX_REPORT_BYTES, MemberReport, Report, decode_report, sign_report
from common.spec import SCHEMA, RunSpec
from common.store.port import ObjectMissing
from common.units import Hotkey, Revision, RoundId, sha256_hex
from validator.bars import CODES, LONGEST_ROUNDS, MOST_EXCUSES, MOST_LATENESS, NO_BAR, Bar
from validator.ledger import Account, Totals, restored
from validator.outages import only_facts
from validator.reports_place import ReportStore
from validator.scoring.policy import Score, Seat, supported_times

MAX_WHY = 300
LARGEST_FLOAT32 = 3.4e38


@dataclass(frozen=True)
class Books:
    """A miner's growth and speed at the end of a round."""

    growth: Totals
    account: Account
    tokens_per_s: float
    """As it says."""
    proven_tokens_per_s: float
    bar: Bar = NO_BAR
    """Until when it reduces nothing, and why."""


@dataclass(frozen=True)
class Outcome:
    """What a report says about the round itself."""

    round: RoundId
    revision: Revision
    committed: bool
    heldout_loss_base: float
    heldout_loss: float


def make_report(
    run: str,
    signer: Hotkey,
    outcome: Outcome,
    scores: Sequence[Score],
    books: Mapping[Hotkey, Books],
    health: HealthReport | None = None,
) -> Report:
    """The report of a round, members in the order of their hotkeys."""
    nothing = Books(Totals(), Account(), 0.0, 0.0)
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
        health=health,
    )


def write_report(store: ReportStore, report: Report, signer: Signer) -> str:
    """Seal the report and put it; its key. Raises as ``seal_report``; ``Retryable`` when the store stays away."""
    key, body = seal_report(report, signer)
    put_report(store, key, body)
    return key


def put_report(store: ReportStore, key: str, body: bytes) -> None:
    """Put a sealed report. ``Retryable`` when the store stays away: the same bytes may be put again."""
    with only_facts():
        store.put(key, body)


def seal_report(report: Report, signer: Signer) -> tuple[str, bytes]:
    """Key and signed bytes. Raises ``Rejected('not_finite')`` for figures that would poison every average after."""
    if not _finite(report):
        raise Rejected("not_finite", f"the report of round {report.round} has figures that are not finite; not written")
    try:
        body = sign_report(report, signer).encode()
    except ValueError as error:  # a figure without a canonical form, such as an integer beyond 2^53
        raise Rejected("not_finite", f"the report of round {report.round} can't be written: {error}") from error
    return keys.report_key(report.run, report.signer, report.round, sha256_hex(body)), body


@dataclass(frozen=True)
class Found:
    """What a validator's reports in the bucket say to one that starts."""

    newest: Report | None = None
    first_loss: float | None = None
    """Held-out loss at revision 0, if the report of the first round is there."""


def read_reports(store: ReportStore, spec: RunSpec, validator: Hotkey) -> tuple[Report, ...]:
    """All reports of one validator, one a round, by round. Blocking; ``Retryable`` when the store stays away."""
    rounds = _keys_by_round(store, spec.run, validator)
    found = (_first_readable(store, spec.run, rounds[round_id], validator) for round_id in sorted(rounds))
    return tuple(report for report in found if report is not None)


def find_reports(store: ReportStore, run: str, validator: Hotkey, before: RoundId | None = None) -> Found:
    """The latest report of this validator, and what its earliest tells of revision 0; reads no more than it needs.

    ``before``: the log's next round. Whoever reports of it, or of a later one, reports what has not happened.
    """
    listed = _keys_by_round(store, run, validator)
    rounds = {round_id: found for round_id, found in listed.items() if before is None or round_id < before}
    found = (_first_readable(store, run, rounds[round_id], validator) for round_id in sorted(rounds, reverse=True))
    newest = next((report for report in found if report is not None), None)
    if newest is None:
        return Found()
    first = _first_readable(store, run, rounds[min(rounds)], validator)
    return Found(newest, first.heldout_loss_base if first and first.revision == int(first.committed) else None)


def _keys_by_round(store: ReportStore, run: str, validator: Hotkey) -> dict[int, list[str]]:
    rounds: dict[int, list[str]] = {}
    with only_facts():
        listed = [info.key for info in store.list(keys.reports_prefix(run, validator))]
    for key in listed:
        parts = keys.parse_key(run, key)
        if parts is not None and parts.kind == "report" and parts.round_id is not None:
            rounds.setdefault(parts.round_id, []).append(key)
    return rounds


def _first_readable(store: ReportStore, run: str, candidates: list[str], validator: Hotkey) -> Report | None:
    """The report that counts for a round: the first, in the order of the keys, that is one."""
    read = (_read(store, run, key, validator) for key in sorted(candidates))
    return next((report for report in read if report is not None), None)


def averages(report: Report | None) -> dict[Seat, float]:
    """Everybody's average as the report left it."""
    return {(m.hotkey, m.registered_block): m.score for m in report.members} if report else {}


def proven(report: Report) -> dict[Hotkey, float]:
    """Everybody's proven rate as the report left it."""
    return {m.hotkey: m.proven_tokens_per_s for m in report.members if m.proven_tokens_per_s > 0}


def barred(report: Report) -> dict[Hotkey, Bar]:
    """Who reduces nothing for a while, and who may soon. Foreign figures are brought within their bounds."""
    found = {m.hotkey: _bar(m, report.round) for m in report.members}
    return {hotkey: bar for hotkey, bar in found.items() if bar != NO_BAR}


def _bar(member: MemberReport, round_id: RoundId) -> Bar:
    code = WRONG_MEAN if member.barred_for is None and member.barred_until > 0 else member.barred_for
    lateness, excuses = member.lateness or 0, member.excuses or 0
    return Bar(
        min(max(0, member.barred_until), round_id + 1 + LONGEST_ROUNDS),
        next((known for known in CODES if known == code), ""),
        min(max(0, lateness), MOST_LATENESS),
        min(max(0, excuses), MOST_EXCUSES),
    )


def evidence(report: Report | None) -> dict[Seat, float]:
    """Everybody's evidence as the report left it."""
    return {(m.hotkey, m.registered_block): m.evidence for m in report.members} if report else {}


def supported(report: Report) -> dict[Hotkey, float]:
    """Times the usual rate that everybody's evidence supports."""
    found = {m.hotkey: supported_times(m.evidence) for m in report.members}
    return {hotkey: times for hotkey, times in found.items() if times is not None}


def accounts(report: Report | None) -> dict[Hotkey, Account]:
    """Everybody's books as the report left them."""
    if report is None:
        return {}
    return {
        m.hotkey: restored(m.session, Totals(m.session_tokens, m.session_training_ms / 1e3, m.session_online_ms / 1e3))
        for m in report.members
        if m.session
    }


def _read(store: ReportStore, run: str, key: str, validator: Hotkey) -> Report | None:
    try:
        with only_facts():
            body = store.get(key, max_bytes=MAX_REPORT_BYTES).body
        report, record = decode_report(body, run)
    except ObjectMissing:
        logger.warning("{} was listed and is gone; another report counts", key)
        return None
    except Rejected as refusal:
        logger.warning("{} is not a report: {}; another one counts", key, refusal)
        return None
    parts = keys.parse_key(run, key)
    if parts is None or report.round != parts.round_id:  # what is counted in rounds would reach as far as it likes
        logger.warning("{} is a report of round {}; another one counts", key, report.round)
        return None
    return report if record.signer == validator else None


def _finite(report: Report) -> bool:
    """Whether every figure of the report and of its parts is a number."""
    return all(abs(value) < LARGEST_FLOAT32 for value in _floats(report))


def _floats(value: object) -> Iterator[float]:
    if isinstance(value, float):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from _floats(item)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from _floats(getattr(value, field.name))


def _member(score: Score, books: Books) -> MemberReport:
    work, growth, last = score.work, books.growth, books.account.last
    return MemberReport(
        hotkey=work.hotkey,
        uid=work.uid,
        registered_block=work.registered_block,
        decision=work.decision,
        code=work.code,
        tokens_trained=growth.tokens,
        tokens_merged=work.merged if work.decision == "accepted" else 0,
        tokens_late=work.late_tokens,
        timeliness=work.timeliness,
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
        round_score=score.round_score,
        score=score.score,
        why=score.why[:MAX_WHY],
        proven_tokens_per_s=books.proven_tokens_per_s,
        lie=work.lie[:MAX_WHY],
        barred_until=books.bar.until,
        barred_for=books.bar.code if books.bar.until else None,
        lateness=books.bar.lateness or None,
        excuses=books.bar.excuses or None,
        evidence=score.evidence,
    )
