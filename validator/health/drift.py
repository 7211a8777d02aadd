"""What the machines of one site do together slowly, such as the load of the day: followed late and by small steps."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

SHARE = 0.3
"""Weight of the newest round."""
MOST = 0.02
"""Logarithms a round: a load that swings by a fifth over a day moves by 0.009 at most in ten minutes; a fault jumps."""
LAG = 2
"""Rounds that a value waits before it is expected, so that a jump is seen as one."""


@dataclass(slots=True)
class Drift:
    """A logarithm that moves slowly."""

    held: deque[float] = field(default_factory=lambda: deque([0.0], maxlen=LAG))

    def expected(self) -> float:
        """Of the next round."""
        return self.held[0]

    def follow(self, value: float | None) -> None:
        """Take a round's value; None when it may be a fault: then it stays."""
        newest = self.held[-1]
        step = 0.0 if value is None else min(MOST, max(-MOST, SHARE * (value - newest)))
        self.held.append(newest + step)
