"""Block numbers from time: block n begins at genesis + n × block time.

Nothing has to be stored for an empty block, and a restarted node is where it would be had it never stopped. Within
one process the number follows the monotonic clock from an anchor read once, so that a step of the wall clock does
not make blocks jump; ``floor`` (the newest durable block) keeps numbers growing across restarts.
"""

from __future__ import annotations

from common.clock import Clock


class BlockClock:
    """The number of the current block and the time until the next."""

    def __init__(self, genesis_ms: int, block_time_s: float, clock: Clock, floor: int = 0) -> None:
        if block_time_s <= 0:
            raise ValueError("the block time must be positive")
        self.genesis_ms = genesis_ms
        self.block_time_s = block_time_s
        self._clock = clock
        elapsed_s = clock.wall_ns() / 1e9 - genesis_ms / 1e3
        self._offset_s = max(elapsed_s, floor * block_time_s) - clock.monotonic_s()

    def _age_s(self) -> float:
        return self._clock.monotonic_s() + self._offset_s

    def number(self) -> int:
        """The block whose time it is; never negative, never falls."""
        return int(self._age_s() / self.block_time_s)

    def wait_s(self, number: int) -> float:
        """Seconds until block ``number`` begins; 0 when it has."""
        return max(0.0, number * self.block_time_s - self._age_s())

    def timestamp_ms(self, number: int) -> int:
        """When block ``number`` begins, in Unix milliseconds."""
        return self.genesis_ms + round(number * self.block_time_s * 1000)
