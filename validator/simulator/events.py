"""Virtual time: a queue of calls, and the clock that they see.

Invariants: time never goes back; calls of one moment run in the order in which they were asked for, so that equal
inputs give equal runs. Nothing here reads a real clock.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, field

EPOCH_NS = 1_700_000_000_000_000_000
"""What the wall clock shows at second 0: any date does, as nothing is decided by it."""


@dataclass(slots=True)
class Timer:
    """A call that is due at a moment, until it is cancelled."""

    at_s: float
    call: Callable[[], None] | None = field(repr=False)

    def cancel(self) -> None:
        """Forget it; a call that has run already is no mistake."""
        self.call = None


class Queue:
    """Everything that is to happen. It is the clock too (``common.clock.Clock``)."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.count = 0
        """Calls made so far."""
        self._heap: list[tuple[float, int, Timer]] = []
        self._asked = 0

    def monotonic_s(self) -> float:
        return self.now_s

    def wall_ns(self) -> int:
        """A wall clock that is right."""
        return EPOCH_NS + round(self.now_s * 1e9)

    def at(self, at_s: float, call: Callable[[], None]) -> Timer:
        """Call at a moment; a moment that has passed means now. ValueError for one that never comes."""
        if not math.isfinite(at_s):
            raise ValueError(f"nothing can be due at {at_s}")
        timer = Timer(max(at_s, self.now_s), call)
        self._asked += 1
        heapq.heappush(self._heap, (timer.at_s, self._asked, timer))
        return timer

    def after(self, delay_s: float, call: Callable[[], None]) -> Timer:
        """Call in so many seconds."""
        return self.at(self.now_s + delay_s, call)

    def step(self, until_s: float) -> bool:
        """Make the next call, if it is due by ``until_s``; False when there is none."""
        while self._heap and self._heap[0][0] <= until_s:
            at_s, _, timer = heapq.heappop(self._heap)
            if timer.call is None:
                continue
            call, timer.call = timer.call, None
            self.now_s = at_s
            self.count += 1
            call()
            return True
        return False
