"""Machines that claim another speed than they show: told, and nothing else follows. Pure.

A claim is compared with what the validator measured on its own clock, both as tokens per second in which the machine
was seen at work. What a delta counts for, duties and pay rest on no claim, so a liar gains nothing, and an honest
machine whose figures are wrong loses nothing. Bounded by the machines that ``forget`` keeps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from common.units import Hotkey, RoundId

CLAIMS = "claims"
"""The kind under which reports tell of it."""
FACTOR = 2.0
"""Times by which a claim has to be off, either way. Measured on three miners that were held to a speed, in 126 rounds
of two seconds on two cores that were full: the claimed speed was .74 to 2.4 times what was shown, in the middle 1.25,
as a step's middle time is not its mean; the counter .73 to 1.42 times, in the middle 1.0. Plans do not tell work from
claims within twice the usual rate either (``validator.round.tokens``)."""
ROUNDS = 6
"""Rounds in a row that have to say the same. Of those 126 honest rounds 5 were off by the factor, and no two in a row:
at four in a hundred, six in a row come once in 200 million rounds."""
CLEAN = 2
"""Rounds in a row within the factor that end it."""
MOST_TIMES = 1e9
"""That are told, at most."""


@dataclass(frozen=True, slots=True)
class Said:
    """What one machine has claimed and shown in one round, in tokens per second of the receiver's clock."""

    speed: float | None
    """The speed that it claims, over the part of its time that it claims to have trained."""
    counted: float | None
    """What its counter of tokens grew by."""
    shown: float
    """What it handed in, over the time in which it was seen at work."""


@dataclass(frozen=True)
class Claim:
    """A machine whose claims are off."""

    member: Hotkey
    since: RoundId
    rounds: int
    times: float
    """Claimed over shown, the geometric mean: above 1 it claims more than it shows."""

    def __str__(self) -> str:
        than = f"{self.times:.3g} times as much as" if self.times > 1 else f"{self.times:.2g} of what"
        return f"{self.member} claims {than} it shows, in tokens per second, since round {self.since}"


@dataclass(slots=True)
class _Streak:
    since: RoundId
    over: bool
    """Whether it claims too much."""
    rounds: int = 0
    total: float = 0.0
    """Of the logarithms."""
    clean: int = 0

    @property
    def holds(self) -> bool:
        return self.rounds >= ROUNDS


class Claims:
    """The claims of all machines over the rounds."""

    def __init__(self) -> None:
        self._streaks: dict[Hotkey, _Streak] = {}

    def look(self, round_id: RoundId, said: Mapping[Hotkey, Said]) -> tuple[Claim, ...]:
        """Take a round; returns every machine whose claims are off now. What was not seen changes nothing."""
        for hotkey, one in said.items():
            off = _off(one)
            if off is not None:
                self._note(round_id, hotkey, off)
        return self.off

    @property
    def off(self) -> tuple[Claim, ...]:
        """Every machine whose claims are off."""
        return tuple(
            Claim(hotkey, held.since, held.rounds, min(MOST_TIMES, math.exp(held.total / held.rounds)))
            for hotkey, held in sorted(self._streaks.items())
            if held.holds
        )

    def restore(self, claims: Iterable[Claim]) -> None:
        """Go on from what a report tells."""
        self._streaks = {
            one.member: _Streak(one.since, one.times > 1, one.rounds, one.rounds * math.log(one.times))
            for one in claims
        }

    def forget(self, keep: Callable[[Hotkey], bool]) -> None:
        """Drop machines that are gone for good."""
        self._streaks = {hotkey: held for hotkey, held in self._streaks.items() if keep(hotkey)}

    def _note(self, round_id: RoundId, hotkey: Hotkey, off: float) -> None:
        held = self._streaks.get(hotkey)
        if abs(off) <= math.log(FACTOR):
            if held is not None:
                held.clean += 1
                if not held.holds or held.clean >= CLEAN:
                    del self._streaks[hotkey]
            return
        if held is None or held.over != (off > 0):
            held = self._streaks[hotkey] = _Streak(round_id, off > 0)
        held.rounds, held.total, held.clean = held.rounds + 1, held.total + off, 0


def _off(said: Said) -> float | None:
    """The logarithm by which its worst claim is off; None when nothing can be compared."""
    claims = [claim for claim in (said.speed, said.counted) if claim is not None and _is_rate(claim)]
    if not claims or not _is_rate(said.shown):
        return None
    return max((math.log(claim / said.shown) for claim in claims), key=abs)


def _is_rate(value: float) -> bool:
    return math.isfinite(value) and value > 0
