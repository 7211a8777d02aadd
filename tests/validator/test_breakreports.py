"""Breaks and claims in reports: kept as they were, bounded whatever a stranger writes, left out by older versions."""

from __future__ import annotations

import dataclasses
import math

import pytest

from common.healthreport import CaseReport, FindingReport, HealthReport
from common.reports import Report
from common.store.memory import MemoryStore
from common.units import Hotkey, RoundId
from tests.support.specs import VALIDATOR, tiny_spec
from tests.validator.test_reports import report
from validator.care import with_breaks
from validator.health.breaks import ALARM, MOST_COUNTED, Break, restored
from validator.health.claims import MOST_TIMES, ROUNDS, Claim
from validator.health.ladder import Rung
from validator.healthdesk import HealthDesk
from validator.members import MAX_MEMBERS
from validator.scoring.breakreports import broken_in, claims_in, findings_of, troubles_in
from validator.scoring.healthreports import cases_in, findings_in
from validator.scoring.reports import read_reports, write_report

A, B, C = (Hotkey(letter * 48) for letter in "abc")
FLAP = restored(Break.FLAP, A, RoundId(7), 5, 8, 15)
CUT = restored(Break.TRUNCATE, B, RoundId(6), 4, 4, 9)
CUT_TOO = restored(Break.TRUNCATE, C, RoundId(7), 5, 9, 11)
SILENT = restored(Break.UNREACHABLE, C, RoundId(5), 6, 9, 12)
BROKEN = (FLAP, CUT, CUT_TOO, SILENT)
TOGETHER = {(Break.TRUNCATE, B): "subnet 10.1.0.0/24", (Break.TRUNCATE, C): "subnet 10.1.0.0/24"}
LIAR = Claim(A, RoundId(2), 7, 8.0)


def told() -> HealthReport:
    findings = findings_of(BROKEN, TOGETHER, [LIAR], {B: 30}, with_breaks({}, BROKEN))
    return HealthReport(round=RoundId(8), findings=findings, machines=())


def through(health: HealthReport) -> Report:
    """As it is read from the bucket."""
    store = MemoryStore()
    write_report(store, dataclasses.replace(report(8), health=health), VALIDATOR)
    (read,) = read_reports(store, tiny_spec(), VALIDATOR.hotkey)
    return read


def test_what_is_known_goes_through_a_signed_report_as_it_was() -> None:
    desk = HealthDesk()
    desk.go_on_from(through(told()))
    assert desk.troubles.breaks.broken == tuple(sorted(BROKEN, key=lambda one: (one.kind, one.member)))
    assert desk.troubles.groups == TOGETHER
    (claim,) = desk.troubles.claims.off
    assert (claim.member, claim.since, claim.rounds, claim.times) == (A, 2, 7, pytest.approx(8.0))
    desk.begin_lead([A, B, C])
    assert {hotkey: care.rung for hotkey, care in desk.cares.items()} == dict.fromkeys((A, B, C), Rung.NO_DUTIES)
    again = desk.report()
    assert again is not None
    kept = [one for one in through(again).health.findings if one.kind in list(Break)]  # type: ignore[union-attr]
    assert kept == [one for one in through(told()).health.findings if one.kind in list(Break)]  # type: ignore[union-attr]


def test_a_version_that_does_not_know_them_reads_the_rest_of_the_report() -> None:
    read = through(told()).health
    assert read is not None
    assert findings_in(read) == []
    assert cases_in(read, RoundId(8)) == {}


def test_they_are_read_by_people_with_what_is_done_and_the_way_back() -> None:
    found = {(one.kind, one.name): one for one in troubles_in(told())}
    flap, cut = found["flap", A], found["truncate", "subnet 10.1.0.0/24"]
    assert flap.text == "went and returned in 5 of 8 stretches of its connection since round 7"
    assert (flap.done, flap.way_back[:35]) == ("no reduce duties", "15 stretches without a break in a r")
    assert (cut.members, cut.text) == ((B, C), "cut 9 of 13 transfers short since round 6")
    assert "told, and nothing is done" in found["unreachable", C].done
    assert found["claims", A].text.startswith("claims 8 times as much as it shows")
    assert "30 probes in a row" in found["busy", B].text


def case(**changes: object) -> CaseReport:
    made = {"at": RoundId(10**9), "next_probe": RoundId(0), "clean": -5, "dirty": 10**12, "rest": 10**9, "rung": "x"}
    return CaseReport(hotkey=A, **{**made, **changes})  # type: ignore[arg-type]


def finding(kind: str, *cases: CaseReport, **changes: object) -> FindingReport:
    usual = {"blame": "group", "name": "x" * 10_000, "observed": False, "since": RoundId(-4), "departure": 1e30}
    rest = {"sigmas": 1e30, "stage": "whatever", "probed": True, "members": (B,), "cases": cases}
    return FindingReport(kind=kind, **{**usual, **rest, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [*Break, "claims", "busy"])
def test_foreign_figures_are_brought_within_their_bounds(kind: str) -> None:
    others = [Hotkey(f"{number:048d}") for number in range(4 * MAX_MEMBERS)]
    flood = tuple(dataclasses.replace(case(), hotkey=hotkey) for hotkey in others)
    findings = (finding(kind, case()), finding(kind), finding(kind, *flood), finding(kind, case(dirty=-1, at=-9)))
    health = HealthReport(round=RoundId(8), findings=findings, machines=())
    broken, names = broken_in(health, RoundId(8))
    assert len(broken) <= len(Break) * MAX_MEMBERS
    assert all(len(name) <= 200 for name in names.values())
    for one in broken:
        assert 0 <= one.since <= 8
        assert 1 <= one.failed <= one.made <= MOST_COUNTED
        assert one.score <= ALARM
    for claim in claims_in(health, RoundId(8)):
        assert claim.rounds >= ROUNDS
        assert 1 / MOST_TIMES <= claim.times <= MOST_TIMES
    for trouble in troubles_in(health):
        assert trouble.text
        assert len(trouble.members) <= MAX_MEMBERS
        assert len(trouble.name) <= 200
    desk = HealthDesk()
    desk.go_on_from(through(health))
    desk.begin_lead([A])
    assert all(care.rung <= Rung.NO_DUTIES for care in desk.cares.values())


def test_a_claim_that_is_hardly_off_is_not_taken_from_a_report() -> None:
    fair = finding("claims", case(dirty=9), departure=math.log(1.5))
    assert claims_in(HealthReport(round=RoundId(8), findings=(fair,), machines=()), RoundId(8)) == []
