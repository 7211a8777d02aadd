"""The transfer under way, told by the uploading thread and read by the heartbeat; and the gate between the two.

While a heartbeat is on its way the upload pauses before its next block, since on a slow uplink a late heartbeat looks
like a dead miner; never for longer than ``HEARTBEAT_FIRST_S``, so that a silent leader does not stop an upload.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from common.errors import BrigadeError
from common.wire import UploadProgress

HEARTBEAT_FIRST_S = 1.0


class Abandoned(BrigadeError):
    """The upload is no longer wanted."""


class UploadMeter:
    """Progress of one upload at a time. Threads may share it."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._lock = threading.Lock()
        self._size_bytes: int | None = None
        self._sent_bytes = 0
        self._started_s = 0.0
        self._clear_road = threading.Event()
        self._clear_road.set()
        self._upload = 0

    def begin(self, size_bytes: int) -> Callable[[int], None]:
        """An upload of ``size_bytes`` starts. Returns what the transfer calls before each block with the bytes sent;
        it raises ``Abandoned`` once ``end`` was called."""
        with self._lock:
            self._upload += 1
            upload = self._upload
            self._size_bytes, self._sent_bytes, self._started_s = size_bytes, 0, self._now_s()
        return lambda sent_bytes: self._report(upload, sent_bytes)

    def end(self) -> None:
        """The upload is over, or no longer wanted. Idempotent."""
        with self._lock:
            self._upload += 1
            self._size_bytes = None

    def _report(self, upload: int, sent_bytes: int) -> None:
        with self._lock:
            if upload != self._upload:
                raise Abandoned("the upload is no longer wanted")
            self._sent_bytes = sent_bytes
        self._clear_road.wait(HEARTBEAT_FIRST_S)

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
            rate_bps = 8 * self._sent_bytes / elapsed_s
            return UploadProgress(size_bytes=self._size_bytes, sent_bytes=self._sent_bytes, rate_bps=rate_bps)
