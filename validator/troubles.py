"""What fails rather than crawls, and what is claimed rather than shown: a part of the health desk, round by round.

Invariants: what this finds costs no strike and no pay; what is told of a claim changes nothing at all. The event loop
owns it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from common.healthreport import FindingReport, HealthReport
from common.units import Hotkey, RoundId
from validator.care import Care
from validator.health.breaks import Break, Breaks, Broken, Seen, gathered
from validator.health.claims import Claims, Said
from validator.health.evidence import LINKS
from validator.health.findings import Blame, Finding
from validator.health.labels import Place, groups
from validator.scoring.breakreports import broken_in, claims_in, findings_of

BUSY_TOLD = 24
"""Probes in a row that a miner has put off, since its own work used its link, before that is told: three wishes, each
given up after ``MOST_BUSY``; with ``PROBE_AGAIN_S`` between two that is six minutes, and longer than an upload."""


@dataclass
class Troubles:
    """Of one process."""

    breaks: Breaks = field(default_factory=Breaks)
    claims: Claims = field(default_factory=Claims)
    groups: dict[tuple[Break, Hotkey], str] = field(default_factory=dict)
    """Of those at fault the group that breaks as a whole, by its name."""
    busy: dict[Hotkey, int] = field(default_factory=dict)
    """Who has put off that many probes in a row."""

    def look(
        self,
        round_id: RoundId,
        seen: Seen,
        said: Mapping[Hotkey, Said],
        busy: Mapping[Hotkey, int],
        places: Mapping[Hotkey, Place],
        seated: Callable[[Hotkey], bool],
    ) -> list[str]:
        """Look at a round that was committed; what changed by it, each in a sentence."""
        before, claimed, put_off = self.told, {one.member for one in self.claims.off}, set(self.busy)
        self.breaks.look(round_id, seen)
        self.claims.look(round_id, said)
        self.breaks.forget(seated)
        self.claims.forget(seated)
        self.busy = {hotkey: times for hotkey, times in busy.items() if times >= BUSY_TOLD and seated(hotkey)}
        self.groups = {}
        broken = self.breaks.broken
        for kind, members, name in gathered(broken, groups(places)) if broken else ():
            self.groups |= {(kind, hotkey): name for hotkey in members}
        now = self.told
        lines = [f"verdict: {now[key]}" for key in sorted(now.keys() - before.keys())]
        lines += [f"well again: {before[key]}" for key in sorted(before.keys() - now.keys())]
        lines += [f"told only: {claim}" for claim in self.claims.off if claim.member not in claimed]
        lines += [f"told only: {hotkey} puts off every probe" for hotkey in sorted(self.busy.keys() - put_off)]
        return lines

    @property
    def told(self) -> dict[tuple[Break, Hotkey], Broken]:
        """Who is at fault, and in what."""
        return {(one.kind, one.member): one for one in self.breaks.broken}

    def report(self, cares: Mapping[Hotkey, Care]) -> tuple[FindingReport, ...]:
        """For the signed report."""
        return findings_of(self.breaks.broken, self.groups, self.claims.off, self.busy, cares)

    def go_on_from(self, health: HealthReport, round_id: RoundId) -> None:
        """Take up what a report tells."""
        broken, self.groups = broken_in(health, round_id)
        self.breaks.restore(broken)
        self.claims.restore(claims_in(health, round_id))
        self.busy = {}


def believed(seen: Seen, suspended: Iterable[Finding]) -> Seen:
    """What still counts of a round in which nobody is blamed for the links: not what goes over the storage when that is
    at fault, and nothing when the validator's own link is."""
    blamed = {finding.blame for finding in suspended if finding.kind in LINKS}
    if Blame.SELF in blamed:
        return {}
    return {kind: tried for kind, tried in seen.items() if kind is Break.FLAP or Blame.STORAGE not in blamed}
