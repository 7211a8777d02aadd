"""The transfer under way, told by the uploading threads and read by the heartbeat; the gate between the two; and the
uplink's speed.

While a heartbeat is on its way the upload pauses before its next block, since on a slow uplink a late heartbeat looks
like a dead miner; never for longer than ``HEARTBEAT_FIRST_S``, so that a silent leader does not stop an upload.

The speed is bytes over busy time of the newest stretches of uploading, whatever uploads they belonged to. Bytes count
when a connection takes them, which is early by what its buffers hold; an upload ends with its reply, so that over
whole uploads the sum is right. An upload of which nothing moved at all speaks of an outage, not of the uplink.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from common import timeouts
from common.errors import BrigadeError
from common.wire import UploadProgress

HEARTBEAT_FIRST_S = 1.0
STRETCH_S = 5.0
"""A stretch of uploading, unless the upload ends earlier: the newest is never older than this."""
STRETCHES = 60
"""As many are remembered: five busy minutes."""
LONGEST_PAUSE_S = timeouts.BULK_STALL_S
"""Time without a byte counts up to this: a connection that died, or a store that asked for patience, must not look
like a slow uplink for long."""


class Abandoned(BrigadeError):
    """The upload is no longer wanted."""


class UploadMeter:
    """Progress of one upload at a time, and the uplink's speed over all of them. Threads may share it."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._lock = threading.Lock()
        self._size_bytes: int | None = None
        self._already_bytes = 0
        self._sent_bytes = 0
        self._started_s = 0.0
        self._clear_road = threading.Event()
        self._clear_road.set()
        self._upload = 0
        self._speed = _Speed()

    def begin(self, size_bytes: int, already_bytes: int = 0) -> Callable[[int], None]:
        """An upload of ``size_bytes`` starts, ``already_bytes`` of which are there. Returns what the transfer calls
        before each block with the bytes sent, those included; it raises ``Abandoned`` once ``end`` was called."""
        with self._lock:
            self._close()
            self._upload += 1
            upload, now_s = self._upload, self._now_s()
            self._size_bytes, self._already_bytes, self._sent_bytes = size_bytes, already_bytes, already_bytes
            self._started_s = now_s
            self._speed.start(now_s)
        return lambda sent_bytes: self._report(upload, sent_bytes)

    def end(self) -> None:
        """The upload is over, or no longer wanted. Idempotent."""
        with self._lock:
            self._upload += 1
            self._close()

    def rate_bps(self) -> float | None:
        """The uplink as measured, in bits a second; None before the first stretch has ended."""
        with self._lock:
            return self._speed.rate_bps()

    @contextmanager
    def heartbeat_first(self) -> Iterator[None]:
        """Holds the upload back while a heartbeat travels."""
        self._clear_road.clear()
        try:
            yield
        finally:
            self._clear_road.set()

    def view(self) -> UploadProgress | None:
        """For the heartbeat; None while nothing is uploaded."""
        with self._lock:
            if self._size_bytes is None:
                return None
            elapsed_s = max(self._now_s() - self._started_s, 1e-3)
            rate_bps = 8 * max(0, self._sent_bytes - self._already_bytes) / elapsed_s
            return UploadProgress(size_bytes=self._size_bytes, sent_bytes=self._sent_bytes, rate_bps=rate_bps)

    def _report(self, upload: int, sent_bytes: int) -> None:
        with self._lock:
            if upload != self._upload:
                raise Abandoned("the upload is no longer wanted")
            # Less than before is a part that starts again: the link carried the first attempt's bytes all the same.
            self._speed.add(max(0, sent_bytes - self._sent_bytes), self._now_s())
            self._sent_bytes = sent_bytes
        self._clear_road.wait(HEARTBEAT_FIRST_S)

    def _close(self) -> None:
        if self._size_bytes is not None:
            self._size_bytes = None
            self._speed.stop(self._now_s())


class _Speed:
    """Bytes over busy time of the newest stretches. Times are the caller's clock."""

    def __init__(self) -> None:
        self._stretches: deque[tuple[int, float]] = deque(maxlen=STRETCHES)
        self._bytes = 0
        self._busy_s = 0.0
        self._seen_s = 0.0
        self._kept = False
        """Whether there is a stretch of the upload under way."""

    def start(self, now_s: float) -> None:
        self._bytes, self._busy_s, self._seen_s, self._kept = 0, 0.0, now_s, False

    def add(self, sent_bytes: int, now_s: float) -> None:
        """So many more bytes went out since the last call."""
        self._busy_s += min(max(0.0, now_s - self._seen_s), LONGEST_PAUSE_S)
        self._seen_s = now_s
        self._bytes += sent_bytes
        if self._bytes and self._busy_s >= STRETCH_S:
            self._keep()

    def stop(self, now_s: float) -> None:
        """The upload has its reply, or was given up."""
        self.add(0, now_s)
        if not self._bytes and self._kept:  # what came before was still in the buffers
            sent_bytes, busy_s = self._stretches.pop()
            self._bytes, self._busy_s = sent_bytes, busy_s + self._busy_s
        self._keep()

    def rate_bps(self) -> float | None:
        busy_s = sum(seconds for _, seconds in self._stretches)
        return 8 * sum(sent for sent, _ in self._stretches) / busy_s if busy_s > 0 else None

    def _keep(self) -> None:
        if self._bytes and self._busy_s > 0:
            self._stretches.append((self._bytes, self._busy_s))
            self._kept = True
        self._bytes, self._busy_s = 0, 0.0
