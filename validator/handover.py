"""What a new leader takes over from those before it: the rates that miners have proven, who is barred, and who is slow.

Who follows hears no heartbeats, so nothing is proven to it, and the cap on unproven claims would cut the work of every
honest machine in the very round that is taken over. The reports of earlier leaders say what was proven to them, and
which miners reduce nothing for a while, and why.
Invariants: what was proven to this validator itself stands above anybody's word; a leader that was convicted here is
not asked. Source: DESIGN.md, sections 4 and 6.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from common.reports import Report
from common.runlog.state import RunState
from common.units import Hotkey
from validator.bars import Bar
from validator.reports_place import ReportStore
from validator.scoring import reports

MOST_ASKED = 3
"""Earlier leaders whose newest report is read, the last one first: rates of long ago say little."""


@dataclass(frozen=True)
class Before:
    """What earlier leaders have reported."""

    rates: Mapping[Hotkey, float]
    """Tokens per second that were proven; the later leader's word counts."""
    bars: Mapping[Hotkey, Bar]
    """Who reduces nothing for a while."""
    reports: tuple[Report, ...]
    """All that was read. Of health the newest one counts: each leader goes on from the one before."""


def known_before(store: ReportStore, run: RunState, own: Hotkey, convicted: Collection[Hotkey]) -> Before:
    """From the newest reports of the last few leaders but ``own`` and ``convicted``. Blocking; ``Retryable``."""
    earlier = dict.fromkeys(leader.hotkey for leader in reversed(run.leaders))
    asked = [hotkey for hotkey in earlier if hotkey != own and hotkey not in convicted][:MOST_ASKED]
    rates: dict[Hotkey, float] = {}
    bars: dict[Hotkey, Bar] = {}
    read: list[Report] = []
    for hotkey in asked:
        newest = reports.find_reports(store, run.spec.run, hotkey, run.next_round).newest
        if newest is not None:
            rates = {**reports.proven(newest), **rates}
            bars = {**reports.barred(newest), **bars}
            read.append(newest)
    return Before(rates, bars, tuple(read))
