"""The health monitor's state as a report tells it, and back: verdicts, and the compact past that they rest on. Pure.

Invariants: what was written is read back as it was, up to float32; foreign figures are brought within their bounds, so
that no report accuses for ever or makes a rate that nobody has; with the most members and verdicts that there can be a
report keeps below its largest size. Scores that are rising, and values that are not part of a past yet, are left out:
they come together again within a few rounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from common.healthreport import CaseReport, FindingReport, HealthReport, MachineReport, RateReport
from common.units import Hotkey, RoundId
from validator.care import Care
from validator.health.evidence import Kind, Level
from validator.health.findings import Blame, Finding, Stage
from validator.health.ladder import Rung
from validator.health.monitor import CLEAN_ROUNDS, LONGEST_REST, SETTLED_ROUNDS, Case, Monitor
from validator.health.past import FLOOR, Past
from validator.members import MAX_MEMBERS

MAX_NAME = 200
MOST_LOG = 50.0
"""A rate lies between exp(-50) and exp(50) units a second."""
MOST_SIGMAS = 1e6
MOST_SEEN = 1 << 20
Key = tuple[Kind, Hotkey]


def health_report(
    round_id: RoundId,
    monitor: Monitor,
    told: Iterable[Finding],
    newest: Mapping[Key, Level],
    cares: Mapping[Hotkey, Care],
    troubles: Iterable[FindingReport] = (),
) -> HealthReport:
    """``told`` are this round's findings beside the verdicts, ``cares`` what is done about those under one;
    ``troubles`` as ``validator.scoring.breakreports`` tells them."""
    verdicts: dict[Finding, list[tuple[Hotkey, Case]]] = {}
    for (_, hotkey), case in sorted(monitor.cases.items()):
        verdicts.setdefault(case.finding, []).append((hotkey, case))
    found = [_finding(finding, cases, cares) for finding, cases in verdicts.items()]
    found += [*(_finding(finding, (), cares) for finding in told), *troubles]
    machines = (_machine(hotkey, monitor, newest) for hotkey in sorted(monitor.followed())[:MAX_MEMBERS])
    return HealthReport(
        round=round_id, findings=tuple(found), machines=tuple(one for one in machines if one is not None)
    )


def findings_in(health: HealthReport) -> list[Finding]:
    """All that it tells of; what this version does not know is left out."""
    found = (_read_finding(told) for told in health.findings)
    return [finding for finding in found if finding is not None]


def cases_in(health: HealthReport, round_id: RoundId) -> dict[Key, Case]:
    """The verdicts of a report of this round."""
    found: dict[Key, Case] = {}
    for told in health.findings:
        finding = _read_finding(told)
        if finding is not None and finding.stage is Stage.VERDICT:
            for case in told.cases:
                found.setdefault((finding.kind, case.hotkey), _read_case(case, finding, round_id))
    return found


def pasts_in(health: HealthReport) -> dict[Key, Past]:
    """What machines usually do, where enough rounds stand behind it."""
    found: dict[Key, Past] = {}
    for machine in health.machines:
        for kind in Kind:
            rate = rate_of(machine, kind)
            if rate is not None and rate.usual is not None:
                seen = int(_within(rate.seen, 1, MOST_SEEN))
                found[kind, machine.hotkey] = Past(_log(rate.usual), _within(rate.spread, FLOOR, MOST_LOG), seen)
    return found


def rate_of(machine: MachineReport, kind: Kind) -> RateReport | None:
    """One kind of a machine's rates."""
    return {Kind.COMPUTE: machine.compute, Kind.UPLINK: machine.uplink, Kind.DOWNLINK: machine.downlink}[kind]


def rung_of(case: CaseReport) -> Rung:
    """What is done about its machine; nothing, for what this version does not know."""
    return next((rung for rung in Rung if rung.name.lower() == case.rung), Rung.NOTHING)


def _finding(finding: Finding, cases: Iterable[tuple[Hotkey, Case]], cares: Mapping[Hotkey, Care]) -> FindingReport:
    held = tuple(
        CaseReport(
            hotkey=hotkey,
            at=case.at,
            next_probe=case.next_probe,
            clean=case.clean,
            dirty=case.dirty,
            rest=case.rest,
            rung=(cares[hotkey].rung if hotkey in cares else Rung.NOTHING).name.lower(),
        )
        for hotkey, case in cases
    )
    return FindingReport(
        kind=finding.kind.value,
        blame=finding.blame.value,
        name=finding.name[:MAX_NAME],
        observed=finding.observed,
        since=finding.since,
        departure=_log(finding.departure),
        sigmas=_within(finding.sigmas, -MOST_SIGMAS, MOST_SIGMAS),
        stage=finding.stage.value,
        probed=finding.probed,
        members=() if held else tuple(sorted(finding.members)),
        cases=held,
    )


def _machine(hotkey: Hotkey, monitor: Monitor, newest: Mapping[Key, Level]) -> MachineReport | None:
    rates = {kind: _rate(monitor.past(kind, hotkey), newest.get((kind, hotkey))) for kind in Kind}
    if not any(rates.values()):
        return None
    return MachineReport(
        hotkey=hotkey, compute=rates[Kind.COMPUTE], uplink=rates[Kind.UPLINK], downlink=rates[Kind.DOWNLINK]
    )


def _rate(past: Past | None, newest: Level | None) -> RateReport | None:
    if past is None:
        return None
    known = past.level is not None
    return RateReport(
        usual=None if past.level is None else _log(past.level),
        spread=past.spread,
        seen=past.seen if known else len(past.waiting),
        newest=None if newest is None else _log(newest.log_rate),
    )


def _read_finding(told: FindingReport) -> Finding | None:
    if told.kind not in list(Kind) or told.blame not in list(Blame) or told.stage not in list(Stage):
        return None
    return Finding(
        kind=Kind(told.kind),
        blame=Blame(told.blame),
        members=frozenset(case.hotkey for case in told.cases) or frozenset(told.members),
        name=told.name[:MAX_NAME],
        observed=told.observed,
        since=RoundId(max(0, told.since)),
        departure=min(0.0, _log(told.departure)),
        sigmas=_within(told.sigmas, -MOST_SIGMAS, MOST_SIGMAS),
        stage=Stage(told.stage),
        probed=told.probed,
    )


def _read_case(told: CaseReport, finding: Finding, round_id: RoundId) -> Case:
    return Case(
        finding,
        at=RoundId(int(_within(told.at, round_id - SETTLED_ROUNDS, round_id))),
        next_probe=RoundId(int(_within(told.next_probe, 0, round_id + LONGEST_REST))),
        clean=int(_within(told.clean, 0, CLEAN_ROUNDS - 1)),
        dirty=int(_within(told.dirty, 0, SETTLED_ROUNDS)),
        rest=int(_within(told.rest, 1, LONGEST_REST)),
    )


def _log(value: float) -> float:
    return _within(value, -MOST_LOG, MOST_LOG)


def _within(value: float, least: float, most: float) -> float:
    return min(most, max(least, value))
