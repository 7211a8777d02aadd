"""Probes without a suspicion: they tell how probes compare with the rounds, and rates that no round shows. Pure.

A probe is a small transfer of its own, and may be slower or faster than a delta in many parts. How much so is learnt
from machines under no verdict, and taken off before a probe speaks for or against anybody. Where miners have no duties
nobody sees them read: there routine probes of the downlink are the evidence itself. Bounded: so many a round.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from common.units import Hotkey
from validator.health.evidence import LINKS, Kind, Level
from validator.health.monitor import Monitor
from validator.health.past import middle

COMPARED = 16
"""Newest comparisons of one kind that count."""
LEAST_COMPARED = 3
"""Before that no probe supports a verdict."""
COMPARED_A_ROUND = 2
MOST_ROUTINE = 8
"""Machines whose downlink is probed as evidence in one round; a quarter of them at most, if that is more than two."""
Wanted = Mapping[Kind, frozenset[Hotkey]]
Results = Mapping[Kind, Mapping[Hotkey, Level]]


@dataclass
class Routine:
    """Of one process."""

    reads_seen: bool = False
    """Whether the rounds show how fast miners read."""
    _wanted: dict[Kind, frozenset[Hotkey]] = field(default_factory=dict)
    _offsets: dict[Kind, deque[float]] = field(default_factory=lambda: {kind: deque(maxlen=COMPARED) for kind in LINKS})
    _turns: dict[Kind, int] = field(default_factory=lambda: dict.fromkeys(LINKS, 0))

    def want(self, live: Collection[Hotkey], asked: Wanted) -> Wanted:
        """Whom to probe after this round, by turns; ``asked`` are probed for a reason."""
        some = min(MOST_ROUTINE, max(2, len(live) // 4))
        counts = {Kind.UPLINK: COMPARED_A_ROUND, Kind.DOWNLINK: COMPARED_A_ROUND if self.reads_seen else some}
        for kind, count in counts.items():
            free = sorted(set(live) - asked.get(kind, frozenset()))
            start = self._turns[kind] % len(free) if free else 0
            self._turns[kind] += count
            self._wanted[kind] = frozenset((free[start:] + free[:start])[:count])
        return dict(self._wanted)

    def compare(self, shown: Results, monitor: Monitor) -> None:
        """Learn from what was probed by routine, of machines that are under no verdict."""
        for kind in self._compared:
            for hotkey in self._wanted.get(kind, frozenset()) & shown.get(kind, {}).keys():
                level = shown[kind][hotkey]
                away = monitor.against(kind, hotkey, level)
                if away is not None and not level.at_most and (kind, hotkey) not in monitor.cases:
                    self._offsets[kind].append(away)

    def corrected(self, shown: Results, cases: Collection[tuple[Kind, Hotkey]]) -> Results:
        """Probes as if they were transfers of the rounds. While too little was compared, only of those under a verdict:
        uncorrected probes may let one end, and begin none."""
        found: dict[Kind, dict[Hotkey, Level]] = {}
        for kind, of_kind in shown.items():
            offset, known = self._offset(kind), self._is_known(kind)
            for hotkey, level in of_kind.items():
                if known or (kind, hotkey) in cases:
                    found.setdefault(kind, {})[hotkey] = Level(level.log_rate - offset, level.at_most)
        return found

    def evidence(self, shown: Results) -> Mapping[Hotkey, Level]:
        """Of the downlink, where no round shows it: what was probed by routine."""
        if self.reads_seen:
            return {}
        found = shown.get(Kind.DOWNLINK, {})
        return {hotkey: found[hotkey] for hotkey in sorted(self._wanted.get(Kind.DOWNLINK, ())) if hotkey in found}

    @property
    def _compared(self) -> tuple[Kind, ...]:
        return LINKS if self.reads_seen else (Kind.UPLINK,)

    def _is_known(self, kind: Kind) -> bool:
        return kind not in self._compared or len(self._offsets[kind]) >= LEAST_COMPARED

    def _offset(self, kind: Kind) -> float:
        return middle(self._offsets[kind]) if self._is_known(kind) else 0.0
