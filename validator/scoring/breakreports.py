"""Connections, transfers and answers that break, and claims that are off, as a report tells them, and back. Pure.

They are findings of kinds of their own, in the fields that findings have, so that a version that does not know them
leaves them out and reads the rest. Of their cases ``at`` is the first round, ``dirty`` and ``clean`` are what failed
and what did not since, and ``rest`` is how many attempts in a row have to succeed; of a claim ``dirty`` are the rounds,
and ``departure`` is the logarithm of what is shown over what is claimed. Foreign figures are brought within their
bounds, so that no report accuses for longer than those attempts take.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from common.healthreport import CaseReport, FindingReport, HealthReport
from common.units import Hotkey, RoundId
from validator.care import DONE, WITHOUT_DUTIES, Care, way_back_of
from validator.health.breaks import MOST_COUNTED, Break, Broken, restored, told
from validator.health.claims import CLAIMS, FACTOR, MOST_TIMES, ROUNDS, Claim
from validator.health.findings import Blame, Stage
from validator.health.ladder import Rung
from validator.members import MAX_MEMBERS

BUSY = "busy"
MOST_TOLD = 64
"""Machines of each kind, the worst: a quarter of all seats, since what more have at once is nobody's fault."""
MAX_NAME = 200
MOST_LOG = 50.0
Names = dict[tuple[Break, Hotkey], str]


@dataclass(frozen=True)
class Trouble:
    """One such finding, for people and programs."""

    kind: str
    name: str
    """The hotkey, or the group that breaks as a whole."""
    members: tuple[Hotkey, ...]
    text: str
    """What is wrong with whoever is named; begins with no name."""
    since: RoundId
    failed: int
    made: int
    rung: Rung
    way_back: str
    """Empty where nothing is held against anybody."""

    @property
    def done(self) -> str:
        """What is done about it."""
        return DONE[self.rung] if self.rung is not Rung.NOTHING else "it is told, and nothing is done"


def findings_of(
    broken: Iterable[Broken],
    groups: Mapping[tuple[Break, Hotkey], str],
    claims: Iterable[Claim],
    busy: Mapping[Hotkey, int],
    cares: Mapping[Hotkey, Care],
) -> tuple[FindingReport, ...]:
    """All of them, up to ``MOST_TOLD`` of a kind; ``groups`` names those that break together, and ``busy`` tells who
    puts off how many probes in a row."""
    worst = sorted(broken, key=lambda one: (-one.score, one.member))
    kept = [one for kind in Break for one in [other for other in worst if other.kind is kind][:MOST_TOLD]]
    together: dict[tuple[Break, str], list[Broken]] = {}
    for one in sorted(kept, key=lambda one: (one.kind, one.member)):
        together.setdefault((one.kind, groups.get((one.kind, one.member), one.member)), []).append(one)
    found = [_broken(kind, name, held, cares) for (kind, name), held in together.items()]
    found += [_claim(claim) for claim in sorted(claims, key=lambda one: (-one.rounds, one.member))[:MOST_TOLD]]
    put_off = sorted(busy.items(), key=lambda item: (-item[1], item[0]))[:MOST_TOLD]
    return (*found, *(_busy(hotkey, times) for hotkey, times in put_off))


def broken_in(health: HealthReport, round_id: RoundId) -> tuple[list[Broken], Names]:
    """Who is at fault by a report of this round, and the groups that break as a whole."""
    found: dict[tuple[Break, Hotkey], Broken] = {}
    names: Names = {}
    for finding in health.findings:
        if finding.kind in list(Break):
            kind = Break(finding.kind)
            for case in finding.cases[:MAX_MEMBERS]:
                found.setdefault((kind, case.hotkey), _read_broken(kind, case, round_id))
                if finding.blame == Blame.GROUP:
                    names[kind, case.hotkey] = finding.name[:MAX_NAME]
    kept = dict(list(found.items())[: len(Break) * MAX_MEMBERS])
    return list(kept.values()), {key: name for key, name in names.items() if key in kept}


def claims_in(health: HealthReport, round_id: RoundId) -> list[Claim]:
    """Whose claims are off by a report of this round."""
    found: dict[Hotkey, Claim] = {}
    for finding in health.findings:
        if finding.kind == CLAIMS:
            for case in finding.cases[:1]:
                claim = _read_claim(finding, case, round_id)
                if max(claim.times, 1 / claim.times) > FACTOR:
                    found.setdefault(case.hotkey, claim)
    return list(found.values())[:MAX_MEMBERS]


def troubles_in(health: HealthReport) -> Iterator[Trouble]:
    """All that it tells of them, as people read it; what is done first."""
    for finding in sorted(health.findings, key=lambda finding: finding.stage != Stage.VERDICT):
        hotkeys = tuple(case.hotkey for case in finding.cases[:MAX_MEMBERS])
        if not hotkeys:
            continue
        if finding.kind in list(Break):
            yield _trouble(finding, hotkeys, health.round)
        elif finding.kind == CLAIMS:
            claim = _read_claim(finding, finding.cases[0], health.round)
            text, rounds = str(claim).removeprefix(f"{claim.member} "), claim.rounds
            yield Trouble(CLAIMS, claim.member, hotkeys[:1], text, claim.since, rounds, rounds, Rung.NOTHING, "")
        elif finding.kind == BUSY:
            times = _within(finding.cases[0].dirty, 0, MOST_COUNTED)
            text = f"has put off {times} probes in a row, as its own work used its link"
            yield Trouble(BUSY, hotkeys[0], hotkeys[:1], text, health.round, times, times, Rung.NOTHING, "")


def _trouble(finding: FindingReport, hotkeys: tuple[Hotkey, ...], round_id: RoundId) -> Trouble:
    kind = Break(finding.kind)
    held = [_read_broken(kind, case, round_id) for case in finding.cases[:MAX_MEMBERS]]
    failed, made, since = sum(h.failed for h in held), sum(h.made for h in held), min(h.since for h in held)
    worst = max(held, key=lambda one: one.score)
    name = finding.name[:MAX_NAME] if finding.blame == Blame.GROUP else hotkeys[0]
    rung = Rung.NO_DUTIES if kind in WITHOUT_DUTIES else Rung.NOTHING
    text = f"{told(kind, failed, made)} since round {since}"
    return Trouble(kind.value, name, hotkeys, text, since, failed, made, rung, way_back_of(worst))


def _broken(kind: Break, name: str, held: list[Broken], cares: Mapping[Hotkey, Care]) -> FindingReport:
    failed, made = sum(one.failed for one in held), sum(one.made for one in held)
    return FindingReport(
        kind=kind.value,
        blame=(Blame.NODE if name == held[0].member else Blame.GROUP).value,
        name=name[:MAX_NAME],
        observed=True,
        since=min(one.since for one in held),
        departure=max(-MOST_LOG, math.log(1 - failed / made)) if failed < made else -MOST_LOG,
        sigmas=max(one.score for one in held),
        stage=Stage.VERDICT.value,
        probed=False,
        members=(),
        cases=tuple(_case(one, cares) for one in held),
    )


def _case(one: Broken, cares: Mapping[Hotkey, Care]) -> CaseReport:
    rung = cares[one.member].rung if one.member in cares and one.kind in WITHOUT_DUTIES else Rung.NOTHING
    clean = one.made - one.failed
    return _told_case(one.member, one.since, clean, one.failed, one.needed, rung)


def _claim(claim: Claim) -> FindingReport:
    case = _told_case(claim.member, claim.since, 0, claim.rounds, 1, Rung.NOTHING)
    return _note(CLAIMS, case, -math.log(claim.times))


def _busy(hotkey: Hotkey, times: int) -> FindingReport:
    return _note(BUSY, _told_case(hotkey, RoundId(0), 0, times, 1, Rung.NOTHING), 0.0)


def _note(kind: str, case: CaseReport, departure: float) -> FindingReport:
    return FindingReport(
        kind=kind,
        blame=Blame.NODE.value,
        name=case.hotkey,
        observed=True,
        since=case.at,
        departure=departure,
        sigmas=0.0,
        stage=Stage.WATCH.value,
        probed=False,
        members=(),
        cases=(case,),
    )


def _told_case(hotkey: Hotkey, at: RoundId, clean: int, dirty: int, rest: int, rung: Rung) -> CaseReport:
    return CaseReport(hotkey=hotkey, at=at, next_probe=at, clean=clean, dirty=dirty, rest=rest, rung=rung.name.lower())


def _read_broken(kind: Break, case: CaseReport, round_id: RoundId) -> Broken:
    failed = _within(case.dirty, 1, MOST_COUNTED)
    made = min(MOST_COUNTED, failed + _within(case.clean, 0, MOST_COUNTED))
    return restored(kind, case.hotkey, RoundId(_within(case.at, 0, round_id)), failed, made, case.rest)


def _read_claim(finding: FindingReport, case: CaseReport, round_id: RoundId) -> Claim:
    most = math.log(MOST_TIMES)
    times = math.exp(min(most, max(-most, -finding.departure)))
    rounds = _within(case.dirty, ROUNDS, MOST_COUNTED)
    return Claim(case.hotkey, RoundId(_within(case.at, 0, round_id)), rounds, times)


def _within(value: int, least: int, most: int) -> int:
    return min(most, max(least, value))
