"""Time as an argument: the system's clock, a manual one for tests, and the server's time as a miner sees it.

Invariant: no decision compares two machines' wall clocks. Durations come from ``monotonic_s``; the wall clock only
stamps what people read and what btauth/1 requires.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Where a component reads the time."""

    def wall_ns(self) -> int:
        """Nanoseconds since the epoch."""
        ...

    def monotonic_s(self) -> float:
        """Seconds on a clock that never goes back."""
        ...


class SystemClock:
    """The machine's clocks."""

    def wall_ns(self) -> int:
        return time.time_ns()

    def monotonic_s(self) -> float:
        return time.monotonic()


class ManualClock:
    """A clock that moves only when told."""

    def __init__(self, now_s: float = 0.0, epoch_ns: int = 1_700_000_000_000_000_000) -> None:
        self._now_s = now_s
        self._epoch_ns = epoch_ns

    def wall_ns(self) -> int:
        return self._epoch_ns + int(self._now_s * 1e9)

    def monotonic_s(self) -> float:
        return self._now_s

    def advance(self, seconds: float) -> None:
        """Move forward by ``seconds`` ≥ 0."""
        if seconds < 0:
            raise ValueError("time does not go back")
        self._now_s += seconds


class ServerTime:
    """The server's wall clock, carried forward on our own monotonic one, so that a wrong local clock does no harm.

    ``observe`` takes the server's time and the round trip it took; until the first observation the local wall clock
    must do. Each reading is at least one nanosecond after the last, since a nonce is never used twice.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offset_ns = clock.wall_ns() - int(clock.monotonic_s() * 1e9)
        self._last_ns = 0
        self.offset_known = False

    def observe(self, server_wall_ns: int, round_trip_s: float) -> None:
        """Take the server's stamp, made about half a round trip ago."""
        self._offset_ns = server_wall_ns + int(round_trip_s * 5e8) - int(self._clock.monotonic_s() * 1e9)
        self.offset_known = True

    def skew_s(self) -> float:
        """How far the local wall clock is ahead of the server's, in seconds."""
        return (self._clock.wall_ns() - self._offset_ns) / 1e9 - self._clock.monotonic_s()

    def wall_ns(self) -> int:
        now_ns = self._offset_ns + int(self._clock.monotonic_s() * 1e9)
        self._last_ns = max(now_ns, self._last_ns + 1)
        return self._last_ns

    def monotonic_s(self) -> float:
        return self._clock.monotonic_s()
