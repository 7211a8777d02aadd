"""The health of a leader's miners, round by round: evidence, probes for what is suspected, verdicts, what follows.

A look comes after each committed round. What probes have shown since the last one counts first, for what that one
asked; then the round's evidence is looked at, and new probes are asked for. Invariants: only a leader looks; what was
found is in its next report, and whoever goes on, the same process or the next leader, begins there. The event loop
owns it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from common.healthreport import HealthReport
from common.merge.networks import network_of
from common.reports import Report
from common.units import Coldkey, Hotkey, RoundId
from validator.bars import Bars
from validator.care import Care, cares_of, in_fallen_groups, with_breaks
from validator.health.breaks import Break
from validator.health.claims import Said
from validator.health.evidence import Evidence, Kind, Level, level
from validator.health.findings import Blame, Finding
from validator.health.labels import Label, Place
from validator.health.monitor import Monitor
from validator.routine import Routine
from validator.scoring.healthreports import Key, cases_in, health_report, pasts_in
from validator.troubles import Troubles, believed
from validator.vitals import Vitals


class Prober(Protocol):
    """Transfers that are made to see how fast a machine is."""

    def want(self, kinds: Mapping[Kind, frozenset[Hotkey]], now_s: float, *, confirm: bool = False) -> None:
        """Probe these, in this; ``confirm``: soon, though they were probed a short while ago."""
        ...

    def take(self, now_s: float) -> Mapping[Kind, Mapping[Hotkey, Level]]:
        """What has been shown since the last call."""
        ...


@dataclass(frozen=True)
class Looked:
    """What the look after a round rests on, beside the samples."""

    round: RoundId
    places: Mapping[Hotkey, Place]
    """Of everybody who lives, or of whom something was seen."""
    live: Collection[Hotkey]
    seated: Callable[[Hotkey], bool]
    """Whether it still has a seat."""
    now_s: float
    said: Mapping[Hotkey, Said] = field(default_factory=dict)
    """What heartbeats claimed, and what was shown."""


@dataclass
class HealthDesk:
    """Of one process."""

    prober: Prober | None = None
    routine: Routine = field(default_factory=Routine)
    vitals: Vitals = field(default_factory=Vitals)
    monitor: Monitor = field(default_factory=Monitor)
    troubles: Troubles = field(default_factory=Troubles)
    """What fails rather than crawls, and what is claimed."""
    cares: Mapping[Hotkey, Care] = field(default_factory=dict)
    round: RoundId | None = None
    """Of the newest look, or of the report that this process goes on from; None: nothing is known."""
    told: tuple[Finding, ...] = ()
    """Of the newest look, beside the verdicts: what is watched, and why a kind blames nobody."""
    newest: dict[Key, Level] = field(default_factory=dict)

    @property
    def spared(self) -> frozenset[Hotkey]:
        """Whose group is at fault."""
        return in_fallen_groups(self.monitor.cases)

    def look(self, seen: Looked, bars: Bars) -> list[str]:
        """Look at a round that was committed; what changed by it, each in a sentence."""
        before, shown = dict(self.cares), self.prober.take(seen.now_s) if self.prober else {}
        self.routine.compare(shown, self.monitor)
        confirmed, well = self.monitor.probed(self.routine.corrected(shown, self.monitor.cases))
        for hotkey, found in self.routine.evidence(shown).items():
            self.vitals.probed(hotkey, found)
        evidence = self.vitals.take(seen.round)
        judgement = self.monitor.look(evidence, seen.places)
        self.monitor.forget(seen.seated)
        self.vitals.forget(seen.seated)
        attempts = believed(self.vitals.take_attempts(seen.now_s), judgement.suspended)
        troubles = self.troubles.look(seen.round, attempts, seen.said, self.vitals.busy, seen.places, seen.seated)
        self._note_newest(evidence, seen)
        if self.prober is not None:
            self.prober.want(judgement.probes, seen.now_s, confirm=True)
            self.prober.want(self.routine.want(seen.live, judgement.probes), seen.now_s)
            self.prober.want({Kind.UPLINK: self._cut_short(seen)}, seen.now_s)
        self.round, self.told = seen.round, (*judgement.watches, *judgement.suspended)
        verdicts = (*confirmed, *judgement.verdicts)
        lines = [f"watched: {finding}" for finding in judgement.watches]
        lines += [f"nobody is blamed: {finding}" for finding in judgement.suspended]
        lines += [f"verdict: {finding}" for finding in verdicts]
        lines += [f"well again: {finding}" for finding in dict.fromkeys((*well, *judgement.released))]
        for finding in verdicts:
            if finding.blame is Blame.GROUP and finding.observed:
                lines += bars.take_back(finding.members, finding.since)
        self.cares = self._cares(seen.live)
        return lines + troubles + _changes(before, self.cares)

    def report(self) -> HealthReport | None:
        """For the signed report, and for whoever asks; None while this process knows nothing."""
        if self.round is None:
            return None
        troubles = self.troubles.report(self.cares)
        return health_report(self.round, self.monitor, self.told, self.newest, self.cares, troubles)

    def usual(self, kind: Kind, hotkey: Hotkey) -> float | None:
        """A machine's usual rate, in units per second; None where it is not known."""
        past = self.monitor.past(kind, hotkey)
        return None if past is None or past.level is None else math.exp(past.level)

    def go_on_from(self, report: Report) -> None:
        """Take up what a report tells, unless this process has looked at that round or a later one itself."""
        health = report.health
        if health is not None and (self.round is None or report.round > self.round):
            self.monitor.restore(cases_in(health, report.round), pasts_in(health))
            self.troubles.go_on_from(health, report.round)
            self.round, self.told = report.round, ()

    def begin_lead(self, live: Collection[Hotkey]) -> None:
        """What was seen in an earlier lead is no evidence of the next round; what was found there is gone by."""
        self.vitals.disturbed()
        self.vitals.clear()
        self.cares = self._cares(live)

    def _cares(self, live: Collection[Hotkey]) -> dict[Hotkey, Care]:
        return with_breaks(cares_of(self.monitor, live), self.troubles.breaks.broken)

    def _cut_short(self, seen: Looked) -> frozenset[Hotkey]:
        """Whose transfers are probed, so that they can show more often than once a round that they come whole."""
        found = (one for one in self.troubles.breaks.broken if one.kind is Break.TRUNCATE)
        return frozenset(one.member for one in found if one.member in seen.live)

    def _note_newest(self, evidence: Evidence, seen: Looked) -> None:
        for kind, of_kind in evidence.samples.items():
            for hotkey, samples in of_kind.items():
                if (shown := level(samples)) is not None:
                    self.newest[kind, hotkey] = shown
        self.newest = {key: shown for key, shown in self.newest.items() if seen.seated(key[1])}


def place_of(coldkey: Coldkey, host: str, asn: int | None) -> Place:
    """Where a machine is, by what nobody can invent: its owner on chain, and the address of its connections."""
    labels = [Label("coldkey", coldkey, True)]
    if (network := network_of(host)) is not None:
        labels.append(Label("subnet", network, True))
    if asn is not None:
        labels.append(Label("asn", f"AS{asn}", True))
    return Place(coldkey, tuple(labels))


def _changes(before: Mapping[Hotkey, Care], after: Mapping[Hotkey, Care]) -> list[str]:
    """What is done that was not done before, and what no longer is; in one line for all that it is the same for."""
    found: dict[str, list[str]] = {}
    for hotkey in sorted(before.keys() | after.keys()):
        old, new = before.get(hotkey), after.get(hotkey)
        if new is None:
            found.setdefault("released, nothing is done any more", []).append(hotkey)
        elif old is None or old.rung is not new.rung:
            found.setdefault(new.told, []).append(hotkey)
    return [f"{', '.join(hotkeys)}: {told}" for told, hotkeys in found.items()]
