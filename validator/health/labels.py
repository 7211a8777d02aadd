"""The groups that a fault may strike together, from what is known of where machines are."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

from common.units import Hotkey

LEAST_MEMBERS = 3
"""Below that a group is not more than its nodes."""
LEAST_COLDKEYS = 3
"""Owners that must stand behind a label that miners declare before it can support a verdict."""


@dataclass(frozen=True, slots=True)
class Label:
    """One thing that machines may share."""

    what: str
    """subnet, asn, coldkey, endpoint (observed), provider, region, gpu (declared)."""
    value: str
    observed: bool
    """Seen by the validator itself, so that nobody can invent it; else the miner says so."""

    def __str__(self) -> str:
        return f"{self.what} {self.value}"


@dataclass(frozen=True)
class Place:
    """Where a machine is, as far as anybody knows."""

    coldkey: str
    labels: tuple[Label, ...]


@dataclass(frozen=True)
class Group:
    """Machines that share something, under every name that they share and nobody else has."""

    members: frozenset[Hotkey]
    names: tuple[tuple[Label, ...], ...]
    """Each a combination of labels that holds for exactly these machines; which of them is at fault nobody can tell."""

    @property
    def observed(self) -> bool:
        """Whether some name of it rests on nothing that a miner declares."""
        return any(all(label.observed for label in name) for name in self.names)

    @property
    def separable(self) -> bool:
        """Whether only one thing is shared by exactly these machines."""
        return len(self.names) == 1

    def __str__(self) -> str:
        said = [" and ".join(map(str, name)) for name in sorted(self.names, key=lambda name: (len(name), str(name)))]
        return said[0] if self.separable else f"{said[0]} (not separable from {', '.join(said[1:4])})"


def groups(places: Mapping[Hotkey, Place]) -> tuple[Group, ...]:
    """Every group of at least three machines by one label, or by a declared one within another; the largest first.

    A name with a declared label counts only when three coldkeys or more stand behind its machines: one owner can't
    invent a group to hide in. A pair that holds for the same machines as one of its labels says nothing more.
    """
    holders: dict[tuple[Label, ...], set[Hotkey]] = defaultdict(set)
    for hotkey, place in places.items():
        for label in place.labels:
            holders[(label,)].add(hotkey)
        for pair in combinations(sorted(place.labels, key=str), 2):
            if pair[0].what != pair[1].what and not all(label.observed for label in pair):
                holders[pair].add(hotkey)
    names: dict[frozenset[Hotkey], list[tuple[Label, ...]]] = defaultdict(list)
    for name, members in holders.items():
        owners = {places[hotkey].coldkey for hotkey in members}
        if len(members) < LEAST_MEMBERS or len(members) == len(places):
            continue
        if not all(label.observed for label in name) and len(owners) < LEAST_COLDKEYS:
            continue
        if len(name) > 1 and any(len(holders[(label,)]) == len(members) for label in name):
            continue
        names[frozenset(members)].append(name)
    found = (Group(members, tuple(sorted(held, key=str))) for members, held in names.items())
    return tuple(sorted(found, key=lambda group: (-len(group.members), str(group))))


def sites(places: Mapping[Hotkey, Place]) -> dict[Hotkey, str]:
    """Where each machine is for what drifts slowly, such as the load of a day: its smallest observed group, or ''."""
    counts: dict[Label, int] = defaultdict(int)
    for place in places.values():
        for label in place.labels:
            counts[label] += label.observed
    found = {}
    for hotkey, place in places.items():
        shared = [label for label in place.labels if label.observed and counts[label] >= 2 * LEAST_MEMBERS]
        found[hotkey] = str(min(shared, key=lambda label: (counts[label], str(label)))) if shared else ""
    return found
