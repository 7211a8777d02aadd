"""Where a validator keeps its reports: in the run's bucket, or without write access in a folder that its API serves.

Names are those of the bucket's last folder and hold the hash of their bytes, so both places hold the same objects.
Invariant: a report is in its place whole or not at all, and what is there is there after a restart.
"""

from __future__ import annotations

import bisect
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from common import keys
from common.errors import Rejected, Retryable
from common.files import write_atomically
from common.reports import MAX_REPORT_BYTES
from common.store.port import Fetched, ObjectInfo, ObjectMissing
from common.units import Hotkey

REPORTS_PATH = "/v1/reports"
MAX_INDEX = 1000
"""Names that the index tells, the newest."""


class ReportStore(Protocol):
    """What reports need of a store: a part of ``ObjectStore``."""

    def put(self, key: str, body: bytes) -> str: ...

    def get(self, key: str, *, max_bytes: int) -> Fetched: ...

    def list(self, prefix: str) -> Iterator[ObjectInfo]: ...


class FolderReports:
    """A ``ReportStore`` of one validator in one run, in a folder. Threads may share it; ``Retryable`` for the disk."""

    def __init__(self, folder: Path, run: str, hotkey: Hotkey) -> None:
        self._folder = folder
        self._run = run
        self._prefix = keys.reports_prefix(run, hotkey)
        self._lock = threading.Lock()
        folder.mkdir(parents=True, exist_ok=True)
        self._names = sorted((path.name for path in folder.iterdir() if self._is_name(path.name)), key=_age)

    def put(self, key: str, body: bytes) -> str:
        """Write it whole; the same bytes may be put again."""
        name = self._name(key)
        try:
            write_atomically(self._folder / name, body)
        except OSError as error:
            raise Retryable(f"{name} can't be written to {self._folder}: {error.strerror}") from error
        with self._lock:
            if name not in self._names:
                bisect.insort(self._names, name, key=_age)
        return name

    def get(self, key: str, *, max_bytes: int) -> Fetched:
        """Its bytes. ``ObjectMissing``; ``Rejected('too_large')``."""
        body = self.read(self._name(key), max_bytes)
        return Fetched(body, ObjectInfo(key, len(body), "", 0.0))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Everything that is kept, if ``prefix`` is ours."""
        if prefix == self._prefix:
            with self._lock:
                names = tuple(self._names)
            yield from (ObjectInfo(prefix + name, 0, "", 0.0) for name in names)

    def index(self) -> Sequence[str]:
        """The newest names, the newest first."""
        with self._lock:
            return self._names[: -MAX_INDEX - 1 : -1]

    def read(self, name: str, max_bytes: int = MAX_REPORT_BYTES) -> bytes:
        """The bytes of a report by its name, which may be a stranger's. ``ObjectMissing`` unless we keep it."""
        with self._lock:
            kept = name in self._names
        if not kept:
            raise ObjectMissing(name[:100])
        try:
            with (self._folder / name).open("rb") as file:
                body = file.read(max_bytes + 1)
        except OSError as error:
            raise ObjectMissing(name) from error
        if len(body) > max_bytes:
            raise Rejected("too_large", f"{name} has more than {max_bytes} bytes")
        return body

    def _name(self, key: str) -> str:
        name = key.removeprefix(self._prefix)
        if not self._is_name(name):
            raise Rejected("bad_key", f"{key[:200]} is no report of this validator")
        return name

    def _is_name(self, name: str) -> bool:
        parts = keys.parse_key(self._run, self._prefix + name)
        return parts is not None and parts.kind in ("report", "conviction")


def _age(name: str) -> tuple[int, str]:
    """Reports by round; of one round by name."""
    return int(name.partition("-")[0]), name


def api_address(ip: str, port: int) -> str:
    """Where a validator without write access serves its reports: what its commitment on chain names."""
    host = f"[{ip}]" if ":" in ip else ip
    return f"http://{host}:{port}{REPORTS_PATH}"
