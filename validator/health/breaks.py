"""Machines whose transfers fail rather than crawl: cut short, not answered, or broken by coming and going. Pure.

One sum of log-likelihood ratios for each machine and kind (a CUSUM with an end, Page 1954): that half of what it is
asked for fails, against what fails for the others in the same round. What fails for many at once is nobody's fault, and
nobody is blamed where too few others were tried to tell. Bounded by the machines that ``forget`` keeps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from common.units import Hotkey, RoundId
from validator.health.labels import LEAST_MEMBERS, Group

USUAL = 0.02
"""Share of the attempts that fails where nothing is wrong, at least. On real processes, on two cores that were full, 0
of 230 transfers and 0 of 207 probes failed: below 1.5 % with 95 % confidence. Lines of the world are worse; one in
fifty is also the share of transfers that the fleets of the simulator spoil."""
FAULTY = 0.5
"""Share that fails at a machine at fault. On average the sum rises where more than ln(.98/.5) / ln(.98/.5 · .5/.02) =
17 % fail: who fails less than one attempt in six is borne for long, as whoever waits for it waits seldom."""
SHARED = 0.25
"""Share of the others' attempts that fails, above which nobody is blamed in a round."""
LEAST_OTHERS = 2
"""Machines beside the one in question that were tried in the round: one alone could be the one at fault."""
ALARM = 10.0
"""Score from which a machine is at fault. One failure adds ln(.5/.02) = 3.2, one success takes .67 away: no three
failures are enough, four with at most four successes between them are. The chain of the score, solved: where 2 % fail
by chance, a machine is accused once in 171,000 attempts, where .5 % do, in 45 million; where half fail, after 9 (one in
twenty: after 16), where a quarter do, after 26, where all do, after 4."""
MOST = ALARM
"""Score that is kept at most: fifteen successes in a row take it to 0, and as many more as failures come between."""
WELL = 0.0
"""Score down to which a machine stays at fault, so that one success lets nobody go who was accused just now."""
NEARLY_ALL = 0.75
"""Of a group's machines: six of eight; where each breaks by itself in one round of a hundred, that is no chance."""
MOST_COUNTED = 1 << 20
"""Attempts that are told, at most."""


class Break(StrEnum):
    """In what attempts fail."""

    FLAP = "flap"
    """Its connection, from one minute to the next: it goes and returns."""
    TRUNCATE = "truncate"
    """A transfer that ends before its length, or brings other bytes."""
    UNREACHABLE = "unreachable"
    """An order of a probe that is not answered. Nobody connects to a miner: what reaches it are the answers to its
    heartbeats."""


@dataclass(frozen=True, slots=True)
class Attempts:
    """What the validator itself has seen of one machine and kind in one round; claims are no attempts."""

    made: int
    failed: int

    def __post_init__(self) -> None:
        if not 0 <= self.failed <= self.made:
            raise ValueError(f"{self.failed} of {self.made} attempts failed: write 0 <= failed <= made")


Seen = Mapping[Break, Mapping[Hotkey, Attempts]]


@dataclass(frozen=True)
class Broken:
    """A machine for which too much fails."""

    kind: Break
    member: Hotkey
    since: RoundId
    """First round of the failures."""
    failed: int
    made: int
    """Attempts since then."""
    score: float = ALARM
    """Logarithm of how much likelier the fault is than chance, up to ``MOST``; at ``WELL`` it is over."""

    @property
    def needed(self) -> int:
        """Attempts in a row that have to succeed until it is over."""
        return max(1, math.ceil((self.score - WELL) / -_ratio(1, 0, USUAL)))

    def __str__(self) -> str:
        return f"{self.member} {told(self.kind, self.failed, self.made)} since round {self.since}"


@dataclass(slots=True)
class _Sum:
    since: RoundId
    score: float = 0.0
    made: int = 0
    failed: int = 0
    at_fault: bool = False


class Breaks:
    """The attempts of all machines over the rounds."""

    def __init__(self) -> None:
        self._sums: dict[tuple[Break, Hotkey], _Sum] = {}

    def look(self, round_id: RoundId, seen: Seen) -> tuple[Broken, ...]:
        """Take a round; returns every machine that is at fault now. One that was not tried stands where it stood."""
        for kind, attempts in seen.items():
            tried = {hotkey: one for hotkey, one in attempts.items() if one.made}
            # Who is known to be at fault says nothing of what all share.
            company = {hotkey: one for hotkey, one in tried.items() if not self._is_at_fault(kind, hotkey)}
            for hotkey, one in tried.items():
                others = [other for name, other in company.items() if name != hotkey]
                usual = _share(others)
                if len(others) >= LEAST_OTHERS and usual <= SHARED:
                    self._add(round_id, kind, hotkey, one, max(USUAL, usual))
        return self.broken

    @property
    def broken(self) -> tuple[Broken, ...]:
        """Every machine that is at fault."""
        return tuple(
            Broken(kind, hotkey, held.since, held.failed, held.made, held.score)
            for (kind, hotkey), held in sorted(self._sums.items())
            if held.at_fault
        )

    def restore(self, broken: Iterable[Broken]) -> None:
        """Go on from what a report tells; sums that were rising in it come together again."""
        self._sums = {
            (one.kind, one.member): _Sum(one.since, one.score, one.made, one.failed, at_fault=True) for one in broken
        }

    def forget(self, keep: Callable[[Hotkey], bool]) -> None:
        """Drop machines that are gone for good."""
        self._sums = {key: held for key, held in self._sums.items() if keep(key[1])}

    def _is_at_fault(self, kind: Break, hotkey: Hotkey) -> bool:
        held = self._sums.get((kind, hotkey))
        return held is not None and held.at_fault

    def _add(self, round_id: RoundId, kind: Break, hotkey: Hotkey, one: Attempts, usual: float) -> None:
        held = self._sums.get((kind, hotkey)) or _Sum(round_id)
        held.score = min(MOST, held.score + _ratio(one.made, one.failed, usual))
        held.made = min(MOST_COUNTED, held.made + one.made)
        held.failed = min(MOST_COUNTED, held.failed + one.failed)
        held.at_fault = held.score >= ALARM or (held.at_fault and held.score > WELL)
        if held.score > WELL:
            self._sums[kind, hotkey] = held
        else:
            self._sums.pop((kind, hotkey), None)


def gathered(broken: Iterable[Broken], where: Iterable[Group]) -> list[tuple[Break, frozenset[Hotkey], str]]:
    """Those at fault who are nearly all of a group that the validator sees for itself, under its name: one thing that
    breaks, not twelve. ``where`` has the largest groups first; nobody is in two."""
    found: list[tuple[Break, frozenset[Hotkey], str]] = []
    kinds: dict[Break, set[Hotkey]] = {}
    for one in broken:
        kinds.setdefault(one.kind, set()).add(one.member)
    for group in where:
        for kind, alone in kinds.items():
            members = group.members & alone
            if group.observed and len(members) >= max(LEAST_MEMBERS, NEARLY_ALL * len(group.members)):
                found.append((kind, members, str(group)))
                alone -= members
    return found


def restored(kind: Break, hotkey: Hotkey, since: RoundId, failed: int, made: int, needed: int) -> Broken:
    """A machine at fault as it was told: ``needed`` attempts in a row have to succeed; bounded by ``MOST``."""
    return Broken(kind, hotkey, since, failed, made, min(MOST, max(1, needed) * -_ratio(1, 0, USUAL) + WELL))


def told(kind: Break, failed: int, made: int) -> str:
    """What failed, for a sentence that begins with a name."""
    return {
        Break.FLAP: f"went and returned in {failed} of {made} stretches of its connection",
        Break.TRUNCATE: f"cut {failed} of {made} transfers short",
        Break.UNREACHABLE: f"did not answer {failed} of {made} probes that it was ordered",
    }[kind]


def _ratio(made: int, failed: int, usual: float) -> float:
    """Logarithm of how much likelier these are at a machine at fault."""
    return failed * math.log(FAULTY / usual) + (made - failed) * math.log((1.0 - FAULTY) / (1.0 - usual))


def _share(attempts: Iterable[Attempts]) -> float:
    found = list(attempts)
    made = sum(one.made for one in found)
    return sum(one.failed for one in found) / made if made else 0.0
