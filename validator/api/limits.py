"""How many requests an address or a hotkey may send, and how many of a hotkey may wait for their answer. Pure; time is
an argument, memory is bounded."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class Limit:
    """``burst`` requests at once, ``rate_per_s`` in the long run."""

    rate_per_s: float
    burst: float


PER_ADDRESS = Limit(rate_per_s=200.0, burst=600.0)  # a farm of miners may share one address
PER_HOTKEY = Limit(rate_per_s=10.0, burst=40.0)
MAX_KEYS = 4096
MOST_AT_ONCE = 4
"""Requests of one hotkey to one path that are being answered. Honest ones come one after the other; a few more are
those whose answer was given up as lost."""


class Turns:
    """Who is being answered. A request that waits is held in memory also when its connection is gone, so that neither
    the rate of a hotkey nor the number of connections bounds how many there are."""

    def __init__(self, most: int = MOST_AT_ONCE) -> None:
        self._most = most
        self._under_way: Counter[tuple[str, str]] = Counter()

    @contextmanager
    def taken(self, key: str, path: str) -> Iterator[bool]:
        """Count one request while it is being answered; False, and nothing is counted, when there are too many."""
        place = key, path
        if self._under_way[place] >= self._most:
            yield False
            return
        self._under_way[place] += 1
        try:
            yield True
        finally:
            self._under_way[place] -= 1
            if not self._under_way[place]:
                del self._under_way[place]


class RateLimiter:
    """One bucket for each key; the keys used longest ago are forgotten first, which only ever favours them."""

    def __init__(self, limit: Limit, max_keys: int = MAX_KEYS) -> None:
        self._limit = limit
        self._max_keys = max_keys
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, key: str, now_s: float) -> float:
        """Use one request; 0 if it may go on, otherwise the seconds until one may."""
        left, at_s = self._buckets.pop(key, (self._limit.burst, now_s))
        left = min(self._limit.burst, left + max(0.0, now_s - at_s) * self._limit.rate_per_s)
        allowed = left >= 1.0
        self._buckets[key] = (left - 1.0 if allowed else left, now_s)
        if len(self._buckets) > self._max_keys:
            self._buckets.popitem(last=False)
        return 0.0 if allowed else (1.0 - left) / self._limit.rate_per_s
