"""What of a miner's own work makes no progress: marks of the moment and the time in, what to tell out. Pure.

Invariant: whatever moved since the last look is not still; the time counts from the look that first saw the mark. A
download counts by its trouble: one that moves slowly has none, and one on which no byte moves is broken off and has.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Literal

from common import timeouts

What = Literal["training", "upload", "delivery", "download"]


@dataclass(frozen=True)
class Effort:
    """Something that a miner is at."""

    what: What
    mark: Hashable
    """Equal as long as nothing moves."""
    limit_s: float
    """So long it may stand still."""
    told: str
    """What it is and what it waits for."""


@dataclass(frozen=True)
class Still:
    """An effort whose mark has not changed since ``since_s``."""

    effort: Effort
    since_s: float

    def due(self, now_s: float) -> bool:
        """Whether it stands still."""
        return now_s - self.since_s >= self.effort.limit_s

    def text(self, now_s: float) -> str:
        """For console, log and heartbeat."""
        return f"no progress for {now_s - self.since_s:.0f} s: {self.effort.told}"


Seen = dict[What, Still]


def look(seen: Seen, efforts: list[Effort], now_s: float) -> Seen:
    """What is under way now, each with the time since which it has its mark."""
    return {effort.what: _go_on(seen.get(effort.what), effort, now_s) for effort in efforts}


def _go_on(before: Still | None, effort: Effort, now_s: float) -> Still:
    same = before is not None and before.effort.mark == effort.mark
    return Still(effort, before.since_s if same and before is not None else now_s)


def step_limit_s(step_s: float | None) -> float:
    """Without a finished inner step for longer, training stands still. ``step_s``: what a step takes; None before the
    first."""
    if step_s is None:
        return timeouts.FIRST_STEP_S
    return max(timeouts.STILL_S, timeouts.STEPS_STILL * step_s)
