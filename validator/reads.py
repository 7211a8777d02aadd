"""Reads of our own that are under way, so that one that never ends has a name.

A reader over a reader; threads may share it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from common.store.port import RangeReader
from common.units import Sha256

DELTA = ".delta"
"""How the keys end of what is timed: objects of one kind and size, read every round."""
REMEMBERED = 64


@dataclass(frozen=True)
class Reading:
    """One read that has not ended."""

    key: str
    size_bytes: int | None
    since_s: float


class WatchedReader:
    """An ``ObjectReader`` that knows what it is reading."""

    def __init__(self, reader: RangeReader, now_s: Callable[[], float]) -> None:
        self._reader = reader
        self._now_s = now_s
        self._lock = threading.Lock()
        self._count = 0
        self._ended = 0
        self._open: dict[int, Reading] = {}
        self._took: deque[tuple[int, float]] = deque(maxlen=REMEMBERED)

    def under_way(self) -> tuple[Reading, ...]:
        """What is being read, the oldest first."""
        with self._lock:
            return tuple(self._open.values())

    @property
    def ended(self) -> int:
        """Reads that have ended so far."""
        with self._lock:
            return self._ended

    def timed(self) -> list[tuple[int, float]]:
        """Bytes and seconds of the newest deltas that were read whole since the last call."""
        with self._lock:
            found = list(self._took)
            self._took.clear()
        return found

    def fetch(self, key: str, *, max_bytes: int, sha256: Sha256 | None = None, size_bytes: int | None = None) -> bytes:
        """See ``ObjectReader.fetch``."""
        since_s = self._now_s()
        number = self._begin(Reading(key, size_bytes, since_s))
        try:
            body = self._reader.fetch(key, max_bytes=max_bytes, sha256=sha256, size_bytes=size_bytes)
        finally:
            self._end(number)
        if key.endswith(DELTA):
            with self._lock:
                self._took.append((len(body), self._now_s() - since_s))
        return body

    def fetch_range(self, key: str, *, start: int, end: int, size_bytes: int) -> bytes:
        """See ``RangeReader.fetch_range``."""
        number = self._begin(Reading(key, end - start, self._now_s()))
        try:
            return self._reader.fetch_range(key, start=start, end=end, size_bytes=size_bytes)
        finally:
            self._end(number)

    def _begin(self, reading: Reading) -> int:
        with self._lock:
            self._count += 1
            self._open[self._count] = reading
            return self._count

    def _end(self, number: int) -> None:
        with self._lock:
            self._ended += 1
            del self._open[number]
