"""When machines are up: availability traces, as spot markets were recorded.

The file is JSON: ``{"metadata": {"gap_seconds": g}, "data": [n available at each tick]}``. Of a trace that never
exceeds 1, machine i follows the trace rotated by i/miners of its length; of a larger one the first ``data[t]``
machines, scaled to the number of miners, are up. Time after the end of the trace begins anew. The reader is total:
whatever the bytes are, it returns a trace or raises ``OperatorError``.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from common.errors import OperatorError

MAX_TRACE_BYTES = 64 << 20
MAX_TICKS = 10_000_000
MAX_AVAILABLE = 1_000_000
MIN_GAP_S, MAX_GAP_S = 1.0, 86_400.0


@dataclass(frozen=True)
class Trace:
    """How many machines were available at each tick."""

    gap_s: float
    counts: npt.NDArray[np.int64]

    @property
    def length_s(self) -> float:
        return self.gap_s * len(self.counts)

    def machine(self, index: int, miners: int) -> Uptime:
        """When machine ``index`` of ``miners`` is up."""
        ticks, peak = len(self.counts), int(self.counts.max())
        if peak > 1:
            return _uptime(self.counts * miners // peak > index, self.gap_s)
        return _uptime(np.roll(self.counts > 0, -(index * ticks // miners)), self.gap_s)


@dataclass(frozen=True)
class Uptime:
    """The times at which one machine comes up and goes, over and over with a period."""

    starts_up: bool
    changes_s: tuple[float, ...]
    """Moments in (0, period) at which it changes."""
    period_s: float

    def changes(self) -> Iterator[tuple[float, bool]]:
        """Every (moment, whether it is up from then on), from second 0 on; the first is at 0."""
        up = self.starts_up
        yield 0.0, up
        for cycle in itertools.count() if self.changes_s else ():
            if up != self.starts_up:
                up = self.starts_up
                yield cycle * self.period_s, up
            for change_s in self.changes_s:
                up = not up
                yield cycle * self.period_s + change_s, up


ALWAYS = Uptime(True, (), 1.0)
"""A machine that nobody takes away."""


def read_trace(path: Path) -> Trace:
    """The trace in a file. Raises OperatorError, naming the file."""
    try:
        if path.stat().st_size > MAX_TRACE_BYTES:
            raise OperatorError(f"{path} is larger than {MAX_TRACE_BYTES >> 20} MiB: no availability trace")
        data = path.read_bytes()
    except OSError as error:
        raise OperatorError(f"the trace {path} can't be read: {error.strerror or error}") from None
    try:
        return parse_trace(data)
    except OperatorError as error:
        raise OperatorError(f"the trace {path}: {error}") from None


def parse_trace(data: bytes) -> Trace:
    """A trace from foreign bytes. Raises OperatorError and nothing else."""
    if len(data) > MAX_TRACE_BYTES:
        raise OperatorError(f"it is larger than {MAX_TRACE_BYTES >> 20} MiB")
    try:
        table = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise OperatorError(f"it is not JSON: {str(error)[:100]}") from None
    if not isinstance(table, dict) or not isinstance(table.get("metadata"), dict):
        raise OperatorError('it must be {"metadata": {"gap_seconds": g}, "data": [n, …]}')
    return Trace(_gap_s(table["metadata"].get("gap_seconds")), _counts(table.get("data")))


def _gap_s(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not MIN_GAP_S <= value <= MAX_GAP_S:
        raise OperatorError(f"metadata.gap_seconds must be a number of seconds from {MIN_GAP_S:g} to {MAX_GAP_S:g}")
    return float(value)


def _counts(value: object) -> npt.NDArray[np.int64]:
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_TICKS:
        raise OperatorError(f"data must be a list of 1 to {MAX_TICKS} counts")
    for place, count in enumerate(value):
        if type(count) is not int or not 0 <= count <= MAX_AVAILABLE:
            raise OperatorError(f"data[{place}] must be a whole number from 0 to {MAX_AVAILABLE}")
    return np.array(value, dtype=np.int64)


def _uptime(up: npt.NDArray[np.bool_], gap_s: float) -> Uptime:
    places = np.flatnonzero(up[1:] != up[:-1]) + 1
    return Uptime(bool(up[0]), tuple(float(place) * gap_s for place in places), len(up) * gap_s)
