"""The first plan of each round, as the log's valid entries tell it: what complaints and audits are about.

Filled slot by slot while the log is read, so that an entry here is one that counts, at its proved place in the chain.
Bounded: the newest rounds. Threads may share it.
"""

from __future__ import annotations

import threading

from common.runlog.entries import Entry, RoundFrozen
from common.runlog.leftout import is_first_plan
from common.runlog.replay import Step
from common.units import RoundId

MOST_ROUNDS = 64


class Plans:
    """First plans by round."""

    def __init__(self, most: int = MOST_ROUNDS) -> None:
        self._most = most
        self._found: dict[RoundId, Entry] = {}
        self._lock = threading.Lock()

    def note(self, step: Step) -> None:
        """Take up one slot of the log."""
        entry = step.entry
        if step.void is not None or entry is None or not is_first_plan(entry):
            return
        assert isinstance(entry.data, RoundFrozen)
        with self._lock:
            self._found[entry.data.round] = entry
            while len(self._found) > self._most:
                del self._found[min(self._found)]

    def find(self, round_id: RoundId) -> Entry | None:
        """The first plan of a round; None when it has none, or when it was long ago."""
        with self._lock:
            return self._found.get(round_id)

    @property
    def oldest(self) -> RoundId:
        """The oldest round that is kept; what is older is not known here any more."""
        with self._lock:
            return min(self._found, default=RoundId(0))
