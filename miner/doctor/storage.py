"""A run's storage as this machine reads it: spec, log, dataset's index, downlink, clock. Blocking, and bounded in time.

Everything is read as ``miner start`` reads it; nothing is written anywhere.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from common import keys
from common.chain.commitment import RunLocation
from common.chain.discovery import base_url
from common.clock import Clock
from common.data.index import MAX_INDEX_BYTES, DatasetIndex, require_index
from common.errors import Rejected
from common.runlog.entries import RevisionCommitted
from common.runlog.reader import LogReader, load_run
from common.runlog.state import RunState
from common.spec import RunSpec
from common.store.http import HttpClient
from common.store.place import BucketPlace
from common.store.reader import HttpReader
from common.store.retry import RetryPolicy
from common.units import Hotkey
from miner.doctor.facts import ClockReading, Head, Link
from miner.doctor.links import DownLimits, measure_downlink, storage_clock
from miner.places import StoragePlace

ATTEMPTS = 2
STALL_S = 8.0
LAST_ROUNDS = 8
"""Whose median length tells how long rounds are at present."""


@dataclass(frozen=True)
class LogSeen:
    """The log as far as it was read."""

    head: Head
    validators: tuple[Hotkey, ...]


class RunStorage:
    """Reads one run's bucket by plain GET."""

    def __init__(self, location: RunLocation, clock: Clock, log_s: float, down: DownLimits) -> None:
        """``log_s``: no slot of the log is asked for after so many seconds."""
        self._location = location
        self._clock = clock
        self._log_s = log_s
        self._down = down
        self._http = HttpClient(connections=2, stall_timeout_s=STALL_S)
        self._reader = HttpReader(base_url(location), http=self._http, policy=RetryPolicy(attempts=ATTEMPTS))

    def close(self) -> None:
        self._http.close()

    def check_public(self) -> None:
        """As ``StoragePlace.check_public``."""
        StoragePlace.of(self._location).check_public()

    def clock(self) -> ClockReading | None:
        """Ours beside the storage's."""
        return storage_clock(self._http, self._url(keys.spec_key(self._location.run)), self._clock)

    def spec(self) -> RunSpec:
        """The spec, which has the hash that the owner committed. Raises as ``load_run``."""
        return load_run(self._reader, self._location.run, self._location.spec_sha256)

    def log(self, spec: RunSpec) -> LogSeen:
        """The head of the log. Raises as ``LogReader.steps``, and ``Rejected('moved')``."""
        place = BucketPlace(self._location.endpoint, self._location.bucket, self._location.prefix)
        until_s, whole, commits_ms = self._clock.monotonic_s() + self._log_s, True, list[int]()
        state: RunState | None = None
        for step in LogReader(self._reader, spec, lambda: place).steps():
            state = step.state
            if step.void is None and step.entry is not None and isinstance(step.entry.data, RevisionCommitted):
                commits_ms.append(step.entry.at_ms)
            if self._clock.monotonic_s() > until_s:
                whole = False
                break
        assert state is not None, "a log has a beginning, or reading it raises"
        if state.left(place):
            raise Rejected("moved", "the run is on its way to another bucket; look again when its owner has moved it")
        paused = "" if state.paused is None else state.paused.code
        return LogSeen(Head(state.head, state.leader, usual_round_s(commits_ms), paused, whole), state.validators)

    def index(self, spec: RunSpec) -> DatasetIndex:
        """The dataset's index, proved by the spec."""
        data = self._reader.fetch(
            keys.dataset_index_key(spec.data.dataset), max_bytes=MAX_INDEX_BYTES, sha256=spec.data.dataset
        )
        return require_index(data, spec.data.dataset)

    def downlink(self, spec: RunSpec, index: DatasetIndex, now_s: Callable[[], float]) -> Link:
        """Measured on the largest file of the dataset, which every miner reads."""
        file = max(index.files, key=index.size_bytes)
        url = self._url(keys.dataset_file_key(spec.data.dataset, file.sha256))
        return measure_downlink(self._http, url, "a file of the dataset", index.size_bytes(file), self._down, now_s)

    def _url(self, key: str) -> str:
        return f"{base_url(self._location)}/{key}"


def usual_round_s(commits_ms: list[int]) -> float | None:
    """Median time between the last commits, by the leaders' stamps; None before the second."""
    newest = commits_ms[-LAST_ROUNDS - 1 :]
    lengths = [(after - before) / 1000 for before, after in pairwise(newest) if after > before]
    return statistics.median(lengths) if lengths else None
