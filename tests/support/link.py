"""A link of limited rate that several connections, and several proxies, share.

A token bucket in its dual form: it keeps the moment at which all that was let through will have passed. Blocks go in
the order in which they asked, so connections that are always busy get equal shares. Pure but for a lock: the time is
an argument.
"""

from __future__ import annotations

import threading

BURST_S = 0.02
"""An idle link lets through at once what it carries in so long, so that a timer's coarseness costs no rate."""
BLOCK_BYTES = 16 * 1024
BLOCK_S = 0.1
"""A block takes a slow link about so long."""
LEAST_BLOCK_BYTES = 2048
"""A block that begins a request holds its first line, which a signed URL makes long."""


class Bucket:
    """One direction of a link. ``rate_bps`` is in bits per second and may be changed at any time; None: no limit."""

    def __init__(self, rate_bps: float | None = None) -> None:
        self.rate_bps = rate_bps
        self.passed_bytes = 0
        self._free_at_s = float("-inf")
        self._lock = threading.Lock()

    @property
    def rate_bps(self) -> float | None:
        return self._rate_bps

    @rate_bps.setter
    def rate_bps(self, rate_bps: float | None) -> None:
        if rate_bps is not None and not rate_bps > 0:
            raise ValueError(f"a rate must be above 0 bit/s, but is {rate_bps}; to let nothing through, stall")
        self._rate_bps = rate_bps

    @property
    def block_bytes(self) -> int:
        """What goes through at a time: on a slow link little, so that a small message need not wait for a large one."""
        if self._rate_bps is None:
            return BLOCK_BYTES
        return max(LEAST_BLOCK_BYTES, min(BLOCK_BYTES, int(self._rate_bps / 8 * BLOCK_S)))

    def take(self, size_bytes: int, now_s: float) -> float:
        """Seconds that a block of this size must wait from ``now_s`` on until it has passed."""
        with self._lock:
            self.passed_bytes += size_bytes
            if self.rate_bps is None:
                return 0.0
            start_s = max(now_s - BURST_S, self._free_at_s)
            self._free_at_s = start_s + size_bytes * 8 / self.rate_bps
            return max(0.0, self._free_at_s - now_s)


class Link:
    """Both directions: up is from the clients to the target."""

    def __init__(self, up_bps: float | None = None, down_bps: float | None = None) -> None:
        self.up, self.down = Bucket(up_bps), Bucket(down_bps)
