"""Departures of one kind over the rounds: what all shared is taken away, then groups are looked at, then nodes.

Two cumulative sums, one for each node and one for each group, and a rule of who explains what: a group whose members
nearly all fell explains them; what it explains is held against no node. Pure and deterministic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from common.units import Hotkey
from validator.health.drift import Drift
from validator.health.evidence import Kind, Level
from validator.health.groupsums import GroupSums
from validator.health.labels import Group
from validator.health.past import RECENT, Past, middle, slack_of

LEAST_COMPARED = 4
"""Machines with a past, below which there is nothing that the round shares."""
NODE_SLACK = 0.7
NODE_MOST = 4.0
"""A transfer counts for so many scatters at most: one in fifty is three to ten times too slow and means nothing."""
NODE_WATCH_IN_GROUP = 4.5
"""Of a node in a group of which a part fell: what its neighbours show speaks for it as well."""
NODE_WATCH = {Kind.COMPUTE: 4.0, Kind.UPLINK: 7.0, Kind.DOWNLINK: 7.0}
"""Compute is a mean over many heartbeats without the long tail of transfers."""
SHARED_FALL = 0.25
"""Logarithms by which the middle machine may fall in a round before we suspect what all of them share."""
SHARED_ALARM = 0.30
"""Share of the machines that may be two scatters down at once before we do."""


@dataclass(frozen=True)
class Alarm:
    """Something fell: one machine, or a group."""

    members: frozenset[Hotkey]
    group: Group | None
    """None for a node."""
    rounds: int
    """Since the onset."""
    departure: float
    """Mean fall, logarithm of the rate; below 0."""
    sigmas: float
    """How far beyond chance: the fall in scatters times the root of the values that it rests on."""


@dataclass(frozen=True)
class Shared:
    """Most of the machines fell at once: their own faults don't explain that."""

    departure: float
    """Of the middle machine."""
    share: float
    """Of the machines that are two scatters down."""


class Detector:
    """One kind of rate over the rounds."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.pasts: dict[Hotkey, Past] = {}
        self._groups = GroupSums()
        self._drifts: dict[str, Drift] = {}
        self._common = Drift()
        """What all machines drift by together."""
        self._shift: dict[Hotkey, float] = {}
        """What was expected of each machine in the newest round, the shared part included."""

    def step(
        self,
        levels: Mapping[Hotkey, Level],
        groups: Iterable[Group],
        sites: Mapping[Hotkey, str],
        accused: frozenset[Hotkey],
    ) -> tuple[list[Alarm], Shared | None]:
        """Look at one round. ``accused`` are under a verdict of this kind: they are followed, and teach nothing.

        Returns the alarms of this round, groups first, and what all shared if that forbids to blame anybody.
        """
        away = self._away(levels, sites)
        shared = self._shared(away)
        if shared is not None:
            return [], shared
        common = middle(away.values()) if len(away) >= LEAST_COMPARED else 0.0
        self._common.follow(common)
        spreads = self._spreads(away)
        self._follow(away, common, spreads)
        seen = self._groups.step(groups, self.pasts, spreads)
        alarms = [
            Alarm(fallen.members - accused, fallen.group, fallen.rounds, fallen.departure, fallen.sigmas)
            for fallen in seen.alarms
            if 2 * len(fallen.members & accused) <= len(fallen.members)
        ]
        for hotkey in away:
            past = self.pasts[hotkey]
            needed = NODE_WATCH_IN_GROUP if hotkey in seen.partly else NODE_WATCH[self.kind]
            if past.score >= min(needed, NODE_WATCH[self.kind]) and hotkey not in seen.explained | accused:
                alarms.append(self._node_alarm(hotkey, past, spreads[hotkey]))
        struck = accused.union(*(alarm.members for alarm in alarms))
        # A jump is no load of the day: its site does not follow it while it may turn out to be a fault.
        self._learn(levels, sites, common, seen.explained | struck, seen.jumping | struck)
        return alarms, None

    def departure(self, hotkey: Hotkey, level: Level) -> tuple[float, float] | None:
        """A probe against what was expected in the newest round: logarithms, and the scatter; None if unknown."""
        expected, past = self._shift.get(hotkey), self.pasts.get(hotkey)
        return None if expected is None or past is None else (level.log_rate - expected, past.spread)

    def calm(self, alarm: Alarm) -> None:
        """A probe has shown that the alarm was none."""
        for hotkey in alarm.members:
            if hotkey in self.pasts:
                self.pasts[hotkey].calm()
        if alarm.group is not None:
            self._groups.calm(alarm.group)

    def forget(self, keep: Callable[[Hotkey], bool]) -> None:
        """Drop machines that are gone for good."""
        self.pasts = {hotkey: past for hotkey, past in self.pasts.items() if keep(hotkey)}
        self._shift = {hotkey: value for hotkey, value in self._shift.items() if keep(hotkey)}

    def _drift(self, site: str) -> float:
        held = self._drifts.get(site)
        return held.expected() if held else 0.0

    def _away(self, levels: Mapping[Hotkey, Level], sites: Mapping[Hotkey, str]) -> dict[Hotkey, float]:
        away = {}
        for hotkey, level in levels.items():
            past = self.pasts.get(hotkey)
            if past is None or past.level is None:
                continue
            value = level.log_rate - past.level - self._drift(sites.get(hotkey, ""))
            if level.at_most and value > 0:
                continue  # it may have been slower than usual, or not
            away[hotkey] = value
        return away

    def _shared(self, away: Mapping[Hotkey, float]) -> Shared | None:
        if len(away) < LEAST_COMPARED:
            return None
        usual = self._common.expected()
        down = sum(value - usual < -2 * self.pasts[hotkey].spread for hotkey, value in away.items()) / len(away)
        fall = middle(away.values()) - usual
        return Shared(fall, down) if fall < -SHARED_FALL or down > SHARED_ALARM else None

    def _spreads(self, away: Mapping[Hotkey, float]) -> dict[Hotkey, float]:
        usual = middle(self.pasts[hotkey].spread for hotkey in away)
        return {hotkey: max(self.pasts[hotkey].spread, 0.8 * usual) for hotkey in away}

    def _follow(self, away: Mapping[Hotkey, float], common: float, spreads: Mapping[Hotkey, float]) -> None:
        for hotkey, past in self.pasts.items():
            value = away.get(hotkey)
            past.recent.append(None if value is None else value - common)
            if value is not None:
                past.depart(value - common, spreads[hotkey], slack_of(past, NODE_SLACK), NODE_MOST)

    def _node_alarm(self, hotkey: Hotkey, past: Past, spread: float) -> Alarm:
        rounds = min(past.onset, RECENT)
        mean = past.mean_departure(rounds, 2 * NODE_MOST * spread) or 0.0
        departure = min(mean, past.usual_departure(rounds))
        return Alarm(frozenset({hotkey}), None, rounds, departure, -mean / spread * math.sqrt(rounds))

    def _learn(
        self,
        levels: Mapping[Hotkey, Level],
        sites: Mapping[Hotkey, str],
        common: float,
        suspects: frozenset[Hotkey],
        struck: frozenset[Hotkey],
    ) -> None:
        moved: dict[str, list[float]] = {}
        for hotkey, level in levels.items():
            past, site = self.pasts.setdefault(hotkey, Past()), sites.get(hotkey, "")
            drift = self._drift(site)
            if past.level is not None:
                self._shift[hotkey] = past.level + drift + common
            if level.at_most:
                continue
            if past.level is not None and site and hotkey not in struck:
                moved.setdefault(site, []).append(level.log_rate - past.level - common)
            if hotkey in suspects or past.score >= NODE_WATCH[self.kind] / 2:
                past.distrust()
                continue
            past.learn(level.log_rate - drift - common)
        here = set(sites.values())
        for site in here:
            values = moved.get(site)
            self._drifts.setdefault(site, Drift()).follow(middle(values) if values else None)
        self._drifts = {site: held for site, held in self._drifts.items() if site in here}
