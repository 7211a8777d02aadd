"""What is done about machines under a verdict, as the rest of the validator goes by it. Pure.

The rungs are the ladder's (``validator.health.ladder``), and each holds what the milder ones do. Invariants: nothing
here touches what a delta counts for or what is paid; those whom no round waits for are always the minority of those
who live, the slowest first, so that caring never leaves a round with nobody to wait for.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from common.units import Hotkey
from validator.health.breaks import Break, Broken
from validator.health.evidence import Kind
from validator.health.findings import Blame, Finding
from validator.health.ladder import Action, Rung, actions
from validator.health.monitor import Case, Monitor

DONE = {
    Rung.NOTHING: "nothing is done",
    Rung.NO_DUTIES: "no reduce duties",
    Rung.SMALLER_SHARE: "no reduce duties, and rounds count on what it does now",
    Rung.QUARANTINE: "no round waits for it, and what comes in time is merged and paid",
}
WITHOUT_DUTIES = frozenset({Break.FLAP, Break.TRUNCATE})
"""Whoever does not answer probes keeps its duties: by silence alone, which costs nothing, nobody gets rid of them."""
Cases = Mapping[tuple[Kind, Hotkey], Case]


@dataclass(frozen=True)
class Care:
    """What rounds may ask of one machine, and count on."""

    rung: Rung
    reason: str
    way_back: str
    tokens_per_s: float | None = None
    """Most that it is expected to train; None: no bound."""
    bytes_per_s: float | None = None
    """Most that it is expected to upload."""

    @property
    def awaited(self) -> bool:
        """Whether rounds wait for it."""
        return self.rung < Rung.QUARANTINE

    @property
    def told(self) -> str:
        """In one sentence."""
        return f"{DONE[self.rung]}: {self.reason}; {self.way_back}"


def cares_of(monitor: Monitor, live: Collection[Hotkey]) -> dict[Hotkey, Care]:
    """For every machine under a verdict; ``live`` are those that rounds may wait for."""
    found = actions(monitor.cases)
    aside = _aside(found, live)
    return {hotkey: _care(monitor, hotkey, action, hotkey in aside) for hotkey, action in found.items()}


def with_breaks(cares: Mapping[Hotkey, Care], broken: Iterable[Broken]) -> dict[Hotkey, Care]:
    """The same, and no duties for machines whose connection or transfers break: others would wait for them. That is
    all: rounds wait for them as before, and what they bring is merged and paid."""
    found = dict(cares)
    for one in broken:
        if one.kind in WITHOUT_DUTIES:
            before = found.get(one.member)
            alone = Care(Rung.NO_DUTIES, str(one), way_back_of(one))
            found[one.member] = alone if before is None else _both(before, alone)
    return found


def way_back_of(one: Broken) -> str:
    """How a machine whose attempts fail gets out of it, in one sentence."""
    what = {
        Break.FLAP: "stretches without a break",
        Break.TRUNCATE: "transfers that come whole, probes among them,",
        Break.UNREACHABLE: "probes that it answers",
    }[one.kind]
    return f"{one.needed} {what} in a row release it, and more if others fail between"


def in_fallen_groups(cases: Cases) -> frozenset[Hotkey]:
    """Whose slowness is its group's, as the validator itself sees it: nothing is held against them."""
    return frozenset(hotkey for (_, hotkey), case in cases.items() if _is_groups(case.finding))


def _both(one: Care, other: Care) -> Care:
    rung = max(one.rung, other.rung)
    return replace(one, rung=rung, reason=f"{one.reason}; {other.reason}", way_back=f"{one.way_back}; {other.way_back}")


def _is_groups(finding: Finding) -> bool:
    return finding.blame is Blame.GROUP and finding.observed


def _aside(found: Mapping[Hotkey, Action], live: Collection[Hotkey]) -> frozenset[Hotkey]:
    asked = [hotkey for hotkey, action in found.items() if action.rung is Rung.QUARANTINE and hotkey in live]
    asked.sort(key=lambda hotkey: (found[hotkey].share, hotkey))
    return frozenset(asked[: max(0, (len(live) - 1) // 2)])


def _care(monitor: Monitor, hotkey: Hotkey, action: Action, aside: bool) -> Care:
    rung = action.rung if action.rung is not Rung.QUARANTINE or aside else Rung.SMALLER_SHARE
    return Care(
        rung,
        action.reason,
        action.way_back,
        _left(monitor, Kind.COMPUTE, hotkey),
        _left(monitor, Kind.UPLINK, hotkey),
    )


def _left(monitor: Monitor, kind: Kind, hotkey: Hotkey) -> float | None:
    """What is left of its usual rate, by the verdict; None without one of this kind."""
    case, past = monitor.cases.get((kind, hotkey)), monitor.past(kind, hotkey)
    if case is None or past is None or past.level is None:
        return None
    return math.exp(past.level + case.finding.departure)
