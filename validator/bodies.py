"""Delta bytes that were read and proved once, kept for the gates, the merge and the trials of the same round.

A reader over a store that remembers objects by hash, up to a number of bytes. Invariants: what comes from memory has
exactly the hash that is asked for; what it refuses is a fact about the object, never the storage's own trouble.
Threads may share it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

from common.codec.container import HEADER_BYTES
from common.store.port import RangeReader
from common.units import Sha256
from validator.outages import only_facts

MAX_KEPT_BYTES = 128 << 20
MAX_HEADERS = 4096
"""Headers of deltas that are kept when their bodies are not: more than a round's members."""


class RememberingReader:
    """An ``ObjectReader`` whose objects of known hash are read once."""

    def __init__(self, reader: RangeReader, max_kept_bytes: int = MAX_KEPT_BYTES) -> None:
        self._reader = reader
        self._max_kept_bytes = max_kept_bytes
        self._bodies: OrderedDict[Sha256, bytes] = OrderedDict()
        self._headers: OrderedDict[Sha256, bytes] = OrderedDict()
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

    def header(self, key: str, *, sha256: Sha256, size_bytes: int) -> bytes:
        """A delta's header, which no hash proves alone: of bytes that were proved, else the delta is read whole."""
        with self._lock:
            header = self._headers.get(sha256)
        if header is not None:
            return header
        return self.fetch(key, max_bytes=size_bytes, sha256=sha256, size_bytes=size_bytes)[:HEADER_BYTES]

    def fetch_range(self, key: str, *, start: int, end: int, size_bytes: int, sha256: Sha256) -> bytes:
        """Bytes [start, end) of the object with this hash; unless it is in memory the caller has to prove them."""
        with self._lock:
            body = self._bodies.get(sha256)
        if body is not None:
            return body[start:end]
        with only_facts():
            return self._reader.fetch_range(key, start=start, end=end, size_bytes=size_bytes)

    def remember(self, sha256: Sha256, body: bytes) -> None:
        """Keep bytes whose hash the caller has proved."""
        with self._lock:
            self._headers[sha256] = body[:HEADER_BYTES]
            while len(self._headers) > MAX_HEADERS:
                self._headers.popitem(last=False)
            if sha256 in self._bodies or len(body) > self._max_kept_bytes:
                return
            self._bodies[sha256] = body
            self._kept_bytes += len(body)
            while self._kept_bytes > self._max_kept_bytes:
                _, oldest = self._bodies.popitem(last=False)
                self._kept_bytes -= len(oldest)
