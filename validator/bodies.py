"""Delta bytes that were read and proved once, kept for the gates, the merge and the trials of the same round.

A reader over a store that remembers objects by hash, up to a number of bytes. Invariants: what comes from memory has
exactly the hash that is asked for; what it refuses is a fact about the object, never the storage's own trouble.
Threads may share it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

from common.store.port import ObjectReader
from common.units import Sha256
from validator.outages import only_facts

MAX_KEPT_BYTES = 128 << 20


class RememberingReader:
    """An ``ObjectReader`` whose objects of known hash are read once."""

    def __init__(self, reader: ObjectReader, max_kept_bytes: int = MAX_KEPT_BYTES) -> None:
        self._reader = reader
        self._max_kept_bytes = max_kept_bytes
        self._bodies: OrderedDict[Sha256, bytes] = OrderedDict()
        self._kept_bytes = 0
        self._lock = threading.Lock()

    def fetch(self, key: str, *, max_bytes: int, sha256: Sha256 | None = None, size_bytes: int | None = None) -> bytes:
        """See ``ObjectReader.fetch``."""
        if sha256 is not None:
            with self._lock:
                body = self._bodies.get(sha256)
            if body is not None and len(body) <= max_bytes and size_bytes in (None, len(body)):
                return body
        with only_facts():
            body = self._reader.fetch(key, max_bytes=max_bytes, sha256=sha256, size_bytes=size_bytes)
        if sha256 is not None:
            self.remember(sha256, body)
        return body

    def remember(self, sha256: Sha256, body: bytes) -> None:
        """Keep bytes whose hash the caller has proved."""
        with self._lock:
            if sha256 in self._bodies or len(body) > self._max_kept_bytes:
                return
            self._bodies[sha256] = body
            self._kept_bytes += len(body)
            while self._kept_bytes > self._max_kept_bytes:
                _, oldest = self._bodies.popitem(last=False)
                self._kept_bytes -= len(oldest)
