"""Who gets no duties in the reduction, for what, and until which round: one bar of each miner. Pure but for ``Bars``.

A bar is no conviction and costs no pay; what a lie costs is decided elsewhere. An owner that lives but lets the leader
wait is barred for rounds that double with each time and shrink again after clean reductions. Of one reduction:

- late: alive, told its duties, and not done at the deadline; or done after half of the time, and long after the others.
- excused: it was gone or did not ask for its duties, the storage turned it away, or most owners were late, so that the
  storage or the leader's own link is suspected. Who is excused again and again is not blamed, but not waited for.
- spared: its slowness is its group's (``validator.care``). Nothing changes for it, and what was noted since the fault
  began is taken back.
- no judgement at all when less time than usual was left for the owners, or when time passed that does not count.

Beside the bars stand those who are slow, or whose transfers break, by the verdict of the health monitor: no duties
while it lasts, and no bar.

Invariants: ``settled`` bars nobody whose reduction was clean; no bar by it is longer than ``LONGEST_ROUNDS``; a bar
ends by itself. Source: DESIGN.md, section 5, the step "no reduce duties".
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from common.units import Hotkey, RoundId

Code = Literal["", "wrong_mean", "late", "excused"]
CODES: tuple[Code, ...] = ("wrong_mean", "late", "excused")
LONGEST_ROUNDS = 64
WEIGHT = 8
"""Clean reductions that make up for one late one, or one excuse: so who is late every few rounds is late too often."""
MOST_LATENESS = 6 * WEIGHT  # 2 ** 6 rounds
MOST_EXCUSES = 2 * WEIGHT  # two reductions
SLOW_SHARE = 1 / 2
"""Of the time that owners have: who takes longer, and ``SLOW_TIMES`` as long as the middle one, is late as well."""
SLOW_TIMES = 2.0
FAIR_SHARE = 1 / 2
"""Of the time that owners usually have: with less than that nobody is judged."""
REMEMBERED = 12
"""Bars of a miner that can be taken back, the newest: as far back as a fault's onset is looked for."""
WHY: Mapping[str, str] = {
    "": "is barred by an earlier leader's report, for what this version does not know",
    "wrong_mean": "handed in a wrong mean",
    "late": "let a round wait for its means",
    "excused": "could not hand its means in for several rounds, which is not held against it",
}


@dataclass(frozen=True)
class Bar:
    """What is held against one miner as an owner."""

    until: int = 0
    """Before this round it reduces nothing; 0: it never was barred."""
    code: Code = ""
    """For what, see ``WHY``."""
    lateness: int = 0
    """``WEIGHT`` for each late reduction, less the clean ones since."""
    excuses: int = 0
    """``WEIGHT`` for each reduction that it was excused from, less the clean ones since."""

    def told(self, round_id: int) -> str:
        """Why it has no duties in a round; empty when it may have some."""
        return f"no reduce duties until round {self.until}: it {WHY[self.code]}" if round_id < self.until else ""


NO_BAR = Bar()


@dataclass(frozen=True)
class Owner:
    """What the leader saw of one owner in one reduction."""

    took_s: float | None
    """From the deal until all its means were there; None: not before the leader began to merge."""
    reached: bool
    """Whether it lives, has been told its duties, and was not turned away by the storage."""


def together(one: Bar, other: Bar) -> Bar:
    """Both bars as one: the longer one, and the worse record. Symmetric but for the code of equal ends."""
    longer = max(one, other, key=lambda bar: bar.until)
    return replace(longer, lateness=max(one.lateness, other.lateness), excuses=max(one.excuses, other.excuses))


def settled(
    round_id: int,
    owners: Mapping[Hotkey, Owner],
    allowed_s: float,
    usual_s: float,
    before: Mapping[Hotkey, Bar],
    spared: Collection[Hotkey] = (),
) -> tuple[dict[Hotkey, Bar], str]:
    """The bars of a reduction's owners after it, and why; empty when nothing changes.

    ``allowed_s``: that its owners had from the deal; ``usual_s``: that a round without delays gives them; ``spared``:
    whom nothing is held against.
    """
    if allowed_s < FAIR_SHARE * usual_s:
        return {}, f"nobody is judged: the owners had {allowed_s:.0f} s of usually {usual_s:.0f} s"
    late = _late(owners, allowed_s)
    most = 2 * len(late) > len(owners)
    found, reasons = {}, []
    if most:
        reasons.append("most owners were late: the storage or this leader's own link is suspected, nobody is blamed")
    for hotkey in sorted(owners):
        bar = before.get(hotkey, NO_BAR)
        if hotkey in late and hotkey in spared:
            continue
        if hotkey not in late:
            after = replace(bar, lateness=max(0, bar.lateness - 1), excuses=max(0, bar.excuses - 1))
        else:
            excused = most or not owners[hotkey].reached
            after = _excused(bar, round_id) if excused else _barred(bar, round_id, "late")
            if after.until > bar.until:
                reasons.append(f"{hotkey} has {after.told(round_id)}")
        if after != bar:
            found[hotkey] = after
    return found, "; ".join(reasons)


def _late(owners: Mapping[Hotkey, Owner], allowed_s: float) -> set[Hotkey]:
    times = [float("inf") if owner.took_s is None else owner.took_s for owner in owners.values()]
    limit_s = max(SLOW_SHARE * allowed_s, SLOW_TIMES * statistics.median(times)) if times else allowed_s
    return {hotkey for hotkey, owner in owners.items() if owner.took_s is None or owner.took_s > limit_s}


def _excused(bar: Bar, round_id: int) -> Bar:
    excuses = bar.excuses + WEIGHT
    excused = replace(bar, excuses=min(MOST_EXCUSES, excuses))
    return excused if excuses <= MOST_EXCUSES else _barred(excused, round_id, "excused")


def _barred(bar: Bar, round_id: int, code: Code) -> Bar:
    """The first time two rounds, and twice as many with each further one."""
    lateness = min(MOST_LATENESS, bar.lateness + WEIGHT)
    until = round_id + 1 + min(LONGEST_ROUNDS, 1 << -(-lateness // WEIGHT))
    return together(replace(bar, lateness=lateness), Bar(until, code))


class Bars:
    """The bars that this process knows of, whether their miners were heard of or not. The event loop owns it."""

    def __init__(self) -> None:
        self._bars: dict[Hotkey, Bar] = {}
        self._earlier: dict[Hotkey, deque[tuple[RoundId, Bar]]] = {}
        """Of each miner the rounds in which something was noted against it, and its bar before."""
        self.slow: Mapping[Hotkey, str] = {}
        """Who has no duties since it is slow, or its transfers break, and the sentence that says so."""

    def of(self, hotkey: Hotkey) -> Bar:
        return self._bars.get(hotkey, NO_BAR)

    def may_reduce(self, hotkey: Hotkey, round_id: int) -> bool:
        """Whether it may have duties in a round."""
        return self.of(hotkey).until <= round_id and hotkey not in self.slow

    def told(self, hotkey: Hotkey, round_id: int) -> str:
        """Why it has no duties in a round; empty when it may have some."""
        slow = f"no reduce duties while this holds: {self.slow[hotkey]}" if hotkey in self.slow else ""
        return self.of(hotkey).told(round_id) or slow

    def add(self, hotkey: Hotkey, bar: Bar) -> None:
        """Learn of a bar: of a lie, or of what an earlier process or leader has reported."""
        self._bars[hotkey] = together(self.of(hotkey), bar)

    def settle(
        self,
        round_id: RoundId,
        owners: Mapping[Hotkey, Owner],
        allowed_s: float,
        usual_s: float,
        spared: Collection[Hotkey] = (),
    ) -> str:
        """Note what the owners of a reduction did; why anything changes, see ``settled``."""
        found, why = settled(round_id, owners, allowed_s, usual_s, self._bars, spared)
        for hotkey, after in found.items():
            before = self.of(hotkey)
            if (after.lateness, after.excuses) > (before.lateness, before.excuses):
                self._earlier.setdefault(hotkey, deque(maxlen=REMEMBERED)).append((round_id, before))
        self._bars.update(found)
        return why

    def take_back(self, hotkeys: Collection[Hotkey], since: RoundId) -> list[str]:
        """What was noted of these by reductions since this round was no fault of theirs; who gets duties again by it.

        Only what this process has noted itself; of a lie nothing is taken back.
        """
        freed = []
        for hotkey in sorted(hotkeys):
            noted = [bar for round_id, bar in self._earlier.pop(hotkey, ()) if round_id >= since]
            if not noted:
                continue
            now = self.of(hotkey)
            lied = Bar(now.until, "wrong_mean") if now.code == "wrong_mean" else NO_BAR
            self._bars[hotkey] = together(noted[0], lied)
            if now.until > self._bars[hotkey].until:
                freed.append(f"{hotkey}: that it {WHY[now.code]} was its group's fault, and is taken back")
        return freed

    def without_duties(self, round_id: RoundId, hotkeys: Collection[Hotkey]) -> Iterator[str]:
        """Which of these get no duties in a round, and why, each in a sentence."""
        for hotkey in sorted(hotkeys):
            if told := self.told(hotkey, round_id):
                yield f"{hotkey} has {told}"
