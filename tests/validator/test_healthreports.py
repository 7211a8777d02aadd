"""Health in reports: kept as it was, bounded whatever a stranger writes, and never too large for a report."""

from __future__ import annotations

import dataclasses
import math

import pytest

from common.errors import Rejected
from common.healthreport import HealthReport
from common.reports import MAX_REPORT_BYTES, Report, decode_report
from common.store.memory import MemoryStore
from common.units import Hotkey, Revision, RoundId, Uid
from tests.support.specs import VALIDATOR, tiny_spec
from tests.validator.test_reports import report
from validator.care import Care
from validator.health.breaks import Break, Broken
from validator.health.claims import Claim
from validator.health.evidence import Kind, Level
from validator.health.findings import Blame, Finding, Stage
from validator.health.ladder import Rung
from validator.health.monitor import LONGEST_REST, SETTLED_ROUNDS, Case, Monitor
from validator.health.past import Past
from validator.healthdesk import HealthDesk
from validator.ledger import Account, Totals
from validator.members import MAX_MEMBERS
from validator.scoring.breakreports import MOST_TOLD, findings_of
from validator.scoring.healthreports import MAX_NAME, cases_in, findings_in, health_report, pasts_in, rung_of
from validator.scoring.policy import Work, score_round
from validator.scoring.reports import MAX_WHY, Books, Outcome, make_report, read_reports, seal_report, write_report

A, B, C = (Hotkey(letter * 48) for letter in "abc")
GROUP = Finding(
    Kind.UPLINK, Blame.GROUP, frozenset({A, B}), "subnet x", True, RoundId(7), -0.5, 6.0, Stage.VERDICT, True
)
CARES = {A: Care(Rung.SMALLER_SHARE, "slow", "probes")}
WATCH = Finding(Kind.DOWNLINK, Blame.NODE, frozenset({C}), C, True, RoundId(8), -0.75, 5.0, Stage.WATCH)


def watching() -> Monitor:
    made = Monitor()
    cases = {
        (Kind.UPLINK, A): Case(GROUP, RoundId(8), RoundId(9)),
        (Kind.UPLINK, B): Case(GROUP, RoundId(8), RoundId(10), clean=1, dirty=2, rest=4),
    }
    pasts = {(kind, hotkey): Past(2.5, 0.25, 20) for kind in Kind for hotkey in (A, B)}
    made.restore(cases, pasts)
    return made


def told(monitor: Monitor) -> HealthReport:
    return health_report(RoundId(8), monitor, [WATCH], {(Kind.UPLINK, A): Level(2.0, False)}, CARES)


def test_what_is_known_goes_through_a_signed_report_as_it_was() -> None:
    store = MemoryStore()
    write_report(store, dataclasses.replace(report(8), health=told(watching())), VALIDATOR)
    (read,) = read_reports(store, tiny_spec(), VALIDATOR.hotkey)
    assert read.health is not None
    assert findings_in(read.health) == [GROUP, WATCH]
    assert [rung_of(case) for case in read.health.findings[0].cases] == [Rung.SMALLER_SHARE, Rung.NOTHING]
    again = Monitor()
    again.restore(cases_in(read.health, read.round), pasts_in(read.health))
    assert told(again) == read.health


def test_a_report_of_before_there_was_health_is_read() -> None:
    key, body = seal_report(report(8), VALIDATOR)
    assert b"health" not in body, key
    assert decode_report(body, "demo")[0].health is None


def test_a_process_goes_on_from_what_is_newer_than_what_it_has_seen_itself() -> None:
    desk = HealthDesk()
    desk.go_on_from(dataclasses.replace(report(8), health=told(watching())))
    assert desk.monitor.cases.keys() == {(Kind.UPLINK, A), (Kind.UPLINK, B)}
    nobody = dataclasses.replace(told(watching()), findings=())
    desk.go_on_from(dataclasses.replace(report(8), health=nobody))
    assert desk.monitor.cases, "it knows that round"
    desk.go_on_from(dataclasses.replace(report(9), health=nobody))
    assert not desk.monitor.cases, "the next leader has released them"


def test_a_verdict_without_a_past_is_dropped() -> None:
    bare = dataclasses.replace(told(watching()), machines=())
    desk = HealthDesk()
    desk.go_on_from(dataclasses.replace(report(8), health=bare))
    assert not desk.monitor.cases


def test_foreign_figures_are_brought_within_their_bounds() -> None:
    made = told(watching())
    finding, watch = made.findings
    case = dataclasses.replace(
        finding.cases[0], at=RoundId(10**9), next_probe=RoundId(10**9), clean=99, dirty=-5, rest=10**6
    )
    wild = dataclasses.replace(finding, departure=3.0, sigmas=1e30, name="x" * 10_000, cases=(case,))
    rate = made.machines[0].uplink
    assert rate is not None
    machine = dataclasses.replace(made.machines[0], uplink=dataclasses.replace(rate, usual=1e30, spread=-1.0, seen=-4))
    unknown = dataclasses.replace(watch, kind="smell")
    health = dataclasses.replace(made, findings=(wild, unknown), machines=(machine,))
    [read] = findings_in(health)
    assert (read.departure, read.left) == (0.0, 1.0)
    assert len(read.name) == MAX_NAME
    [held] = cases_in(health, RoundId(8)).values()
    assert (held.at, held.next_probe, held.clean, held.dirty, held.rest) == (8, 8 + LONGEST_REST, 1, 0, LONGEST_REST)
    past = pasts_in(health)[Kind.UPLINK, A]
    assert past.level is not None
    assert math.isfinite(math.exp(past.level))
    assert past.spread > 0
    assert past.seen == 1
    old = dataclasses.replace(wild, cases=(dataclasses.replace(case, at=RoundId(0)),))
    [held] = cases_in(dataclasses.replace(health, findings=(old,)), RoundId(100)).values()
    assert held.at == 100 - SETTLED_ROUNDS


def test_figures_that_are_no_numbers_are_not_written() -> None:
    made = told(watching())
    broken = dataclasses.replace(made.findings[0], sigmas=math.nan)
    health = dataclasses.replace(made, findings=(broken,))
    with pytest.raises(Rejected, match="not finite"):
        seal_report(dataclasses.replace(report(8), health=health), VALIDATOR)


def test_the_largest_report_is_not_too_large() -> None:
    """As many members as there are seats, each under a verdict of its own in everything, broken in everything, and a
    liar, with the longest words."""
    monitor, hotkeys = Monitor(), [Hotkey(f"{number:03d}".ljust(48, "x")) for number in range(MAX_MEMBERS)]
    cases = {
        (kind, hotkey): Case(
            dataclasses.replace(
                GROUP, kind=kind, name=(hotkey + "n" * MAX_NAME)[:MAX_NAME], members=frozenset(hotkeys)
            ),
            RoundId(10**9),
            RoundId(10**9),
            1,
            SETTLED_ROUNDS,
            LONGEST_REST,
        )
        for kind in Kind
        for hotkey in hotkeys
    }
    monitor.restore(cases, {key: Past(-45.0, 0.25, 10**6) for key in cases})
    newest = {key: Level(-45.0, False) for key in cases}
    cares = {h: CARES[A] for h in hotkeys}
    broken = [Broken(kind, hotkey, RoundId(10**9), 10**6, 10**6) for kind in Break for hotkey in hotkeys]
    claims = [Claim(hotkey, RoundId(10**9), 10**6, math.exp(16.0)) for hotkey in hotkeys]
    troubles = findings_of(broken, {}, claims, dict.fromkeys(hotkeys, 10**6), cares)
    health = health_report(RoundId(10**9), monitor, [WATCH] * 3, newest, cares, troubles)
    assert len(health.findings) == 3 * MAX_MEMBERS + 3 + 5 * MOST_TOLD
    works = [Work(h, Uid(n), 10**9, "rejected", "x" * 20, "y" * MAX_WHY, 10**9, 10**9) for n, h in enumerate(hotkeys)]
    totals = Totals(2**50, 1e9, 1e9)
    books = {h: Books(totals, Account("f" * 64, totals, totals, totals), 1e6, 1e6) for h in hotkeys}
    scores = [dataclasses.replace(s, why="z" * MAX_WHY) for s in score_round(works, {}, True, 8, {}, 1.0)]
    outcome = Outcome(RoundId(10**9), Revision(10**9), True, 3.0, 2.0)
    made: Report = make_report("demo", VALIDATOR.hotkey, outcome, scores, books, health)
    _, body = seal_report(made, VALIDATOR)
    assert len(body) <= MAX_REPORT_BYTES
    assert decode_report(body, "demo")[0] == made
