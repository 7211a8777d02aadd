"""The two ``ObjectReader``s: over plain HTTP, as miners read, and over a store, as validators and tests do.

Both check size and hash the same way, so code that takes an ``ObjectReader`` need not care which one it has. Files
are written beside their place, synced and renamed: a reader of the path finds the whole object or none.
"""

from __future__ import annotations

import hashlib
import random
import time
from pathlib import Path
from typing import BinaryIO

from common.files import atomic_file
from common.store.download import Expected, MemorySink, Sink, download
from common.store.http import HttpClient
from common.store.port import ObjectStore, check_key
from common.store.retry import RetryPolicy, Sleep, Uniform, with_retries
from common.units import Sha256


class HttpReader:
    """Reads objects by GET from under a base URL. Threads may share it."""

    def __init__(
        self,
        base_url: str,
        *,
        http: HttpClient | None = None,
        policy: RetryPolicy | None = None,
        sleep: Sleep = time.sleep,
        uniform: Uniform = random.random,
    ) -> None:
        self._base = base_url.rstrip("/")
        self._http = http or HttpClient()
        self._policy = policy or RetryPolicy()
        self._sleep = sleep
        self._uniform = uniform

    def move(self, base_url: str) -> None:
        """Read from under another base URL, from the next request on."""
        self._base = base_url.rstrip("/")

    def fetch(self, key: str, *, max_bytes: int, sha256: Sha256 | None = None, size_bytes: int | None = None) -> bytes:
        """See ``ObjectReader.fetch``."""
        sink = MemorySink()
        self._download(Expected(check_key(key), max_bytes, sha256, size_bytes), sink)
        return bytes(sink.body)

    def fetch_start(self, key: str, *, start_bytes: int, size_bytes: int) -> bytes:
        """See ``StartReader.fetch_start``."""
        sink = MemorySink()
        self._download(Expected(check_key(key), size_bytes, None, size_bytes, start_bytes), sink)
        return bytes(sink.body)

    def fetch_range(self, key: str, *, start: int, end: int, size_bytes: int) -> bytes:
        """See ``RangeReader.fetch_range``."""
        sink = MemorySink()
        self._download(Expected(check_key(key), size_bytes, None, size_bytes, end - start, start), sink)
        return bytes(sink.body)

    def fetch_file(
        self, key: str, path: Path, *, max_bytes: int, sha256: Sha256 | None = None, size_bytes: int | None = None
    ) -> int:
        """Like ``fetch``, into the file ``path``, without holding the object in memory; returns the size."""
        expected = Expected(check_key(key), max_bytes, sha256, size_bytes)
        with atomic_file(path, size_bytes or 0) as file:
            return self._download(expected, _FileSink(file))

    def _download(self, expected: Expected, sink: Sink) -> int:
        url = f"{self._base}/{expected.key}"
        return download(self._http, url, expected, sink, policy=self._policy, sleep=self._sleep, uniform=self._uniform)


class StoreReader:
    """Reads objects with a store's own credentials."""

    def __init__(
        self,
        store: ObjectStore,
        *,
        policy: RetryPolicy | None = None,
        sleep: Sleep = time.sleep,
        uniform: Uniform = random.random,
    ) -> None:
        self._store = store
        self._policy = policy or RetryPolicy()
        self._sleep = sleep
        self._uniform = uniform

    def fetch(self, key: str, *, max_bytes: int, sha256: Sha256 | None = None, size_bytes: int | None = None) -> bytes:
        """See ``ObjectReader.fetch``."""
        expected = Expected(check_key(key), max_bytes, sha256, size_bytes)
        body = with_retries(
            lambda: self._store.get(key, max_bytes=max_bytes).body,
            self._policy,
            sleep=self._sleep,
            uniform=self._uniform,
        )
        expected.check_size(len(body))
        expected.check_hash(hashlib.sha256(body).hexdigest())
        return body

    def fetch_start(self, key: str, *, start_bytes: int, size_bytes: int) -> bytes:
        """See ``StartReader.fetch_start``."""
        expected = Expected(check_key(key), size_bytes, None, size_bytes, start_bytes)
        found = with_retries(
            lambda: self._store.get(key, start=0, end=start_bytes, max_bytes=start_bytes),
            self._policy,
            sleep=self._sleep,
            uniform=self._uniform,
        )
        expected.check_size(found.info.size_bytes)
        return found.body

    def fetch_range(self, key: str, *, start: int, end: int, size_bytes: int) -> bytes:
        """See ``RangeReader.fetch_range``."""
        expected = Expected(check_key(key), size_bytes, None, size_bytes, end - start, start)
        found = with_retries(
            lambda: self._store.get(key, start=start, end=end, max_bytes=end - start),
            self._policy,
            sleep=self._sleep,
            uniform=self._uniform,
        )
        expected.check_size(found.info.size_bytes)
        return found.body

    def fetch_file(
        self, key: str, path: Path, *, max_bytes: int, sha256: Sha256 | None = None, size_bytes: int | None = None
    ) -> int:
        """Like ``fetch``, into the file ``path``; returns the size."""
        body = self.fetch(key, max_bytes=max_bytes, sha256=sha256, size_bytes=size_bytes)
        with atomic_file(path, len(body)) as file:
            return file.write(body)


class _FileSink:
    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def write(self, block: bytes) -> None:
        self._file.write(block)

    def restart(self) -> None:
        self._file.seek(0)
        self._file.truncate()
