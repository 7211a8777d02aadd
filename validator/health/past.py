"""The own past of one machine in one kind: the level it usually has, how much it scatters, and how it departs from it.

Everything is in natural logarithms of rates. The past is robust and lags behind, so that a fault does not become the
new normal while it is being found. Bounded: a few numbers for each machine and kind.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median

LEAST = 8
"""Rounds before there is a past to compare with; before that nobody is blamed."""
LAG = 4
"""Rounds that a value waits before it becomes part of the past: so long a fault has to be noticed."""
MEMORY = 24
"""Rounds after which the past forgets."""
FLOOR = 0.12
"""Least scatter: a machine whose rates hardly vary is not judged by its third digit."""
CLIP = 2.5
"""Scatters beyond which a value moves the past no further."""
UNSURE = 1.9
"""Scatters times the root of the rounds: one and a half standard errors of a median."""
RECENT = 12
"""Departures that are remembered."""
MEAN_TO_SIGMA = math.sqrt(math.pi / 2)
MEDIAN_TO_SIGMA = 1.4826


@dataclass(slots=True)
class Past:
    """What one machine usually does, and its newest departures from that."""

    level: float | None = None
    """Logarithm of its usual rate; None before there is a past."""
    spread: float = FLOOR
    """Standard deviation of the logarithm."""
    seen: int = 0
    waiting: list[float] = field(default_factory=list)
    """Values that are not part of it yet, the oldest first."""
    score: float = 0.0
    """One-sided cumulative sum of its departures below the past, in scatters."""
    onset: int = 0
    """Rounds since the score was last 0."""
    recent: deque[float | None] = field(default_factory=lambda: deque(maxlen=RECENT))
    """Departures of the newest rounds, in logarithms; None where nothing was seen."""

    def learn(self, value: float) -> None:
        """Take a value of an inconspicuous round; it counts after the lag."""
        self.waiting.append(value)
        if self.level is None:
            if len(self.waiting) >= LEAST + LAG:
                first, self.waiting = self.waiting[:LEAST], self.waiting[LEAST:]
                self.level, self.seen = median(first), LEAST
                self.spread = max(FLOOR, MEDIAN_TO_SIGMA * median(abs(v - self.level) for v in first))
            return
        if len(self.waiting) <= LAG:
            return
        self.seen += 1
        share = 1.0 / min(self.seen, MEMORY)
        most = CLIP * self.spread
        away = min(most, max(-most, self.waiting.pop(0) - self.level))
        self.level += share * away
        self.spread = max(FLOOR, self.spread + share * (MEAN_TO_SIGMA * abs(away) - self.spread))

    def distrust(self) -> None:
        """Values that wait may be part of a fault: they don't become the past."""
        if self.level is not None:
            self.waiting.clear()

    def depart(self, departure: float, spread: float, slack: float, most: float) -> None:
        """Count a departure (logarithms) into the score: at most ``most`` scatters, less ``slack``."""
        self.score = max(0.0, self.score + min(most, -departure / spread) - slack)
        self.onset = self.onset + 1 if self.score > 0 else 0

    def calm(self) -> None:
        """Evidence outside the rounds shows that nothing is wrong."""
        self.score, self.onset = 0.0, 0

    def mean_departure(self, rounds: int, most: float) -> float | None:
        """Mean of the newest departures, each clipped at ``most``; None when none of them is known."""
        known = [min(most, max(-most, value)) for value in self._newest(rounds)]
        return sum(known) / len(known) if known else None

    def usual_departure(self, rounds: int) -> float:
        """The middle one of the newest departures: how far down it is, whatever single ones are; 0 if none is known."""
        return middle(self._newest(rounds))

    def _newest(self, rounds: int) -> list[float]:
        newest = list(self.recent)[-rounds:] if rounds > 0 else []
        return [value for value in newest if value is not None]


def slack_of(past: Past, slack: float) -> float:
    """The slack for this machine: a short past is known badly, and its error must not look like a fault."""
    return slack + UNSURE / math.sqrt(max(1, min(past.seen, MEMORY)))


def middle(values: Iterable[float]) -> float:
    """The median; 0 of nothing."""
    held = sorted(values)
    return median(held) if held else 0.0
