"""Which groups fell together: one cumulative sum for each, and who of several that overlap explains the fall.

A group counts when nearly all of its members fell like its middle. Of a group and a part of it, the whole is at fault
if the rest of it fell too, and the part if not. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from common.units import Hotkey
from validator.health.labels import Group
from validator.health.past import RECENT, Past, middle

SLACK = 1.5
SLACK_EACH = 0.55
"""Scatters that each member may be off together: what is left of the load of a day when its drift is taken away."""
MOST = 6.0
CLIP = 3.0
"""Scatters that one member counts for in one round."""
WATCH = 6.0
RISING = 2.0
"""Score from which a group that fell as one may be about to explain its nodes and parts: they wait for it."""
YOUNG = 6
"""Rounds for which a fall counts as a jump."""
LEAST_FALL = 0.13
"""Logarithm of the rate by which the middle member must have fallen: below that nobody needs to act."""
COHERENT = 0.7
"""Share of the members that must have fallen like the middle one: half of a provider is not the provider."""
MEAN_MOST = 4.0
"""Scatters at which a departure is cut before a member's mean is taken."""


@dataclass(frozen=True)
class Fallen:
    """A group that fell as one."""

    group: Group
    means: Mapping[Hotkey, float]
    """Mean departure of each member since the onset, in scatters."""
    fall: float
    """Of the middle member, in scatters; below 0."""
    departure: float
    """The same in logarithms."""
    rounds: int
    alarms: bool
    """The sum is over the threshold; else it is rising."""

    @property
    def members(self) -> frozenset[Hotkey]:
        """Who fell like the middle one."""
        return frozenset(hotkey for hotkey, mean in self.means.items() if mean < self.fall / 2)

    @property
    def sigmas(self) -> float:
        """How far the fall is beyond chance."""
        return -self.fall * math.sqrt(self.rounds * len(self.means))

    @property
    def explains(self) -> float:
        """By how much it makes what was seen likelier; outliers count little."""
        return self.rounds * sum(min(9.0, m * m) - min(9.0, (m - self.fall) ** 2) for m in self.means.values())


@dataclass(frozen=True)
class Groups:
    """What one round says of the groups."""

    alarms: tuple[Fallen, ...] = ()
    """At fault, none within another."""
    rising: tuple[Fallen, ...] = ()
    partly: frozenset[Hotkey] = frozenset()
    """Members of groups whose sum is over the threshold because a part of them fell."""

    @property
    def explained(self) -> frozenset[Hotkey]:
        """Machines whose fall is, or may soon be, their group's."""
        return frozenset[Hotkey]().union(*(fallen.group.members for fallen in (*self.alarms, *self.rising)))

    @property
    def jumping(self) -> frozenset[Hotkey]:
        """Machines whose group's fall is no slow drift."""
        young = (fallen.group.members for fallen in self.rising if fallen.rounds <= YOUNG)
        return frozenset[Hotkey]().union(*(fallen.members for fallen in self.alarms), *young)


@dataclass(slots=True)
class Sum:
    """A one-sided cumulative sum."""

    score: float = 0.0
    onset: int = 0

    def add(self, value: float) -> None:
        """Add what speaks for a fall."""
        self.score = max(0.0, self.score + value)
        self.onset = self.onset + 1 if self.score > 0 else 0


class GroupSums:
    """The sums of all groups of one kind of rate."""

    def __init__(self) -> None:
        self.sums: dict[str, Sum] = {}

    def step(self, groups: Iterable[Group], pasts: Mapping[Hotkey, Past], spreads: Mapping[Hotkey, float]) -> Groups:
        """Add a round. ``spreads`` holds the machines seen in it; their departures are the newest of ``pasts``."""
        found: list[Fallen] = []
        partly: set[Hotkey] = set()
        sums = {}
        for group in groups:
            here = [hotkey for hotkey in sorted(group.members) if hotkey in spreads]
            held = sums[key_of(group)] = self.sums.get(key_of(group), Sum())
            if not here:
                continue
            held.add(_speaks(here, pasts, spreads))
            if held.score < RISING:
                continue
            fallen = _judge(group, here, held, pasts, spreads)
            if fallen is not None:
                found.append(fallen)
            elif held.score >= WATCH:
                partly |= group.members
        self.sums = sums
        alarms = _at_fault(found)
        rising = tuple(fallen for fallen in found if not fallen.alarms)
        return Groups(alarms, rising, frozenset(partly))

    def calm(self, group: Group) -> None:
        """Evidence outside the rounds shows that nothing is wrong."""
        self.sums.pop(key_of(group), None)


def key_of(group: Group) -> str:
    """What a group's sum is kept under while machines come and go."""
    return " and ".join(map(str, group.names[0]))


def _speaks(here: list[Hotkey], pasts: Mapping[Hotkey, Past], spreads: Mapping[Hotkey, float]) -> float:
    total = 0.0
    for hotkey in here:
        total += min(CLIP, max(-CLIP, (pasts[hotkey].recent[-1] or 0.0) / spreads[hotkey]))
    root = math.sqrt(len(here))
    return min(MOST, -total / root) - max(SLACK, SLACK_EACH * root)


def _judge(
    group: Group, here: list[Hotkey], held: Sum, pasts: Mapping[Hotkey, Past], spreads: Mapping[Hotkey, float]
) -> Fallen | None:
    """The group, if its members fell together."""
    rounds = min(held.onset, RECENT)
    means = {}
    for hotkey in here:
        mean = pasts[hotkey].mean_departure(rounds, MEAN_MOST * spreads[hotkey])
        if mean is not None:
            means[hotkey] = mean / spreads[hotkey]
    fall = middle(means.values())
    departure = middle(pasts[hotkey].usual_departure(rounds) for hotkey in means)
    fallen = Fallen(group, means, fall, departure, rounds, held.score >= WATCH)
    together = len(fallen.members) >= COHERENT * len(means)
    return fallen if departure <= -LEAST_FALL and together else None


def _at_fault(found: list[Fallen]) -> tuple[Fallen, ...]:
    """Of groups that overlap those that explain most, no part of a whole and no whole for its part."""
    chosen: list[Fallen] = []
    taken: set[Hotkey] = set()
    alarms = sorted((f for f in found if f.alarms), key=lambda f: (-f.explains, str(f.group)))
    for fallen in alarms:
        within = any(_reaches(fallen, whole) for whole in found if fallen.group.members < whole.group.members)
        beyond = any(not _reaches(part, fallen) for part in alarms if part.group.members < fallen.group.members)
        if within or beyond or 2 * len(fallen.members & taken) > len(fallen.members):
            continue
        chosen.append(fallen)
        taken |= fallen.group.members
    return tuple(chosen)


def _reaches(part: Fallen, whole: Fallen) -> bool:
    """Whether the rest of the whole fell like the part."""
    rest = [mean for hotkey, mean in whole.means.items() if hotkey not in part.group.members]
    return bool(rest) and middle(rest) <= part.fall / 2
