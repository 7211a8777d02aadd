"""Departures of one kind over the rounds: what all shared is taken away, then groups are looked at, then nodes.

Two cumulative sums, one for each node and one for each group, and a rule of who explains what: a group whose members
nearly all fell explains them; what it explains is held against no node. Pure and deterministic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from common.units import Hotkey
from validator.health.evidence import Kind, Level
from validator.health.labels import Group
from validator.health.past import RECENT, Past, middle, slack_of

LEAST_COMPARED = 4
"""Machines with a past, below which there is nothing that the round shares."""
NODE_SLACK = 0.7
NODE_MOST = 4.0
"""A transfer counts for so many scatters at most: one in fifty is three to ten times too slow and means nothing."""
GROUP_SLACK = 1.5
GROUP_SLACK_EACH = 0.5
"""Scatters that each member may be off together: the load of the day moves whole regions by less."""
GROUP_MOST = 6.0
GROUP_CLIP = 3.0
GROUP_WATCH = 6.0
NODE_WATCH_IN_GROUP = 4.5
"""Of a node in a group of which a part fell: what its neighbours show speaks for it as well."""
NODE_WATCH = {Kind.COMPUTE: 4.0, Kind.UPLINK: 7.0, Kind.DOWNLINK: 7.0}
"""Compute is a mean over many heartbeats without the long tail of transfers."""
LEAST_DEPARTURE = 0.8
"""Scatters by which the middle of a group must have fallen."""
COHERENT = 0.7
"""Share of a group's members that must have fallen like its middle: half of a provider is not the provider."""
SHARED_FALL = 0.25
"""Logarithms by which the middle machine may fall in a round before we suspect what all of them share."""
SHARED_ALARM = 0.30
"""Share of the machines that may be two scatters down at once before we do."""
DRIFT = 0.2
"""Weight of the newest round in what a site's machines drift by together."""
DRIFT_LAG = 4


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


@dataclass(slots=True)
class _Sum:
    score: float = 0.0
    onset: int = 0


class Detector:
    """One kind of rate over the rounds."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.pasts: dict[Hotkey, Past] = {}
        self._groups: dict[str, _Sum] = {}
        self._drifts: dict[str, list[float]] = {}
        self._commons: list[float] = [0.0]
        """What all machines drift by together, the newest of the lag last."""
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
        self._commons = [*self._commons, self._commons[-1] + DRIFT * (common - self._commons[-1])][-DRIFT_LAG:]
        spreads = self._spreads(away)
        self._follow(away, common, spreads)
        alarms, explained, partly = self._group_alarms(list(groups), away, spreads, accused)
        for hotkey in away:
            past = self.pasts[hotkey]
            needed = NODE_WATCH_IN_GROUP if hotkey in partly else NODE_WATCH[self.kind]
            if past.score >= min(needed, NODE_WATCH[self.kind]) and hotkey not in explained | accused:
                alarms.append(self._node_alarm(hotkey, past, spreads[hotkey]))
        self._learn(levels, sites, common, explained | accused)
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
            self._groups.pop(_key(alarm.group), None)

    def forget(self, keep: Callable[[Hotkey], bool]) -> None:
        """Drop machines that are gone for good."""
        self.pasts = {hotkey: past for hotkey, past in self.pasts.items() if keep(hotkey)}
        self._shift = {hotkey: value for hotkey, value in self._shift.items() if keep(hotkey)}

    def _drift(self, site: str) -> float:
        held = self._drifts.get(site)
        return held[0] if held else 0.0

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
        usual = self._commons[0]
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

    def _group_alarms(
        self,
        groups: list[Group],
        away: Mapping[Hotkey, float],
        spreads: Mapping[Hotkey, float],
        accused: frozenset[Hotkey],
    ) -> tuple[list[Alarm], set[Hotkey], set[Hotkey]]:
        """Alarms of groups, the machines that they explain, and those of groups of which a part fell."""
        found: list[tuple[float, Alarm]] = []
        keys: set[str] = set()
        partly: set[Hotkey] = set()
        for group in groups:
            here = [hotkey for hotkey in sorted(group.members) if hotkey in away]
            key = _key(group)
            keys.add(key)
            held = self._groups.setdefault(key, _Sum())
            if not here:
                continue
            falls = (self.pasts[h].recent[-1] or 0.0 for h in here)
            total = sum(min(GROUP_CLIP, max(-GROUP_CLIP, f / spreads[h])) for h, f in zip(here, falls, strict=True))
            root = math.sqrt(len(here))
            slack = max(GROUP_SLACK, GROUP_SLACK_EACH * root)
            held.score = max(0.0, held.score + min(GROUP_MOST, -total / root) - slack)
            held.onset = held.onset + 1 if held.score > 0 else 0
            if held.score >= GROUP_WATCH:
                judged = self._judge(group, here, held, spreads)
                if judged is not None:
                    found.append(judged)
                else:
                    partly |= group.members
        self._groups = {key: held for key, held in self._groups.items() if key in keys}
        explained = set(accused)
        alarms = []
        for _, alarm in sorted(found, key=lambda pair: (-pair[0], str(pair[1].group))):
            if 2 * len(alarm.members & explained) <= len(alarm.members):
                alarms.append(alarm)
                assert alarm.group is not None
                explained |= alarm.group.members
        return alarms, explained - accused, partly

    def _judge(
        self, group: Group, here: list[Hotkey], held: _Sum, spreads: Mapping[Hotkey, float]
    ) -> tuple[float, Alarm] | None:
        """The alarm of a group, if its members fell together, and how much it explains."""
        rounds = min(held.onset, RECENT)
        means = {}
        for hotkey in here:
            mean = self.pasts[hotkey].mean_departure(rounds, NODE_MOST * spreads[hotkey])
            if mean is not None:
                means[hotkey] = mean / spreads[hotkey]
        fall = middle(means.values())
        fallen = frozenset(hotkey for hotkey, mean in means.items() if mean < fall / 2)
        if fall > -LEAST_DEPARTURE or len(fallen) < COHERENT * len(means):
            return None
        explains = rounds * sum(min(9.0, m * m) - min(9.0, (m - fall) ** 2) for m in means.values())
        departure = middle(means[hotkey] * spreads[hotkey] for hotkey in fallen)
        return explains, Alarm(fallen, group, rounds, departure, -fall * math.sqrt(rounds * len(means)))

    def _node_alarm(self, hotkey: Hotkey, past: Past, spread: float) -> Alarm:
        rounds = min(past.onset, RECENT)
        mean = past.mean_departure(rounds, 2 * NODE_MOST * spread) or 0.0
        return Alarm(frozenset({hotkey}), None, rounds, mean, -mean / spread * math.sqrt(rounds))

    def _learn(
        self, levels: Mapping[Hotkey, Level], sites: Mapping[Hotkey, str], common: float, suspects: set[Hotkey]
    ) -> None:
        moved: dict[str, list[float]] = {}
        for hotkey, level in levels.items():
            past, site = self.pasts.setdefault(hotkey, Past()), sites.get(hotkey, "")
            drift = self._drift(site)
            if past.level is not None:
                self._shift[hotkey] = past.level + drift + common
            if level.at_most:
                continue
            if hotkey in suspects or past.score >= NODE_WATCH[self.kind] / 2:
                past.distrust()
                continue
            if past.level is not None and site:
                moved.setdefault(site, []).append(level.log_rate - past.level - common)
            past.learn(level.log_rate - drift - common)
        for site, values in moved.items():
            held = self._drifts.setdefault(site, [0.0])
            held.append(held[-1] + DRIFT * (middle(values) - held[-1]))
            del held[:-DRIFT_LAG]
        self._drifts = {site: held for site, held in self._drifts.items() if site in set(sites.values())}


def _key(group: Group) -> str:
    return " and ".join(map(str, group.names[0]))
