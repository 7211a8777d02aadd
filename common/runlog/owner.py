"""How the owner of a run appends its own entries while somebody else leads and appends too.

A slot that the leader took first is no failure: the owner reads it and tries the next one, in the term that holds then.
"""

from __future__ import annotations

from common.errors import Retryable
from common.runlog.entries import EntryData
from common.runlog.state import RunState
from common.runlog.writer import LogWriter, LostSlot

MAX_SLOTS_LOST = 32


def append_owned(writer: LogWriter, state: RunState, data: EntryData, reason: str) -> RunState:
    """Append an entry that the owner signs, behind whatever comes first; the state after it.

    Raises ``Rejected`` when the log's rules refuse it, and ``Retryable`` as ``LogWriter.append``.
    """
    for _ in range(MAX_SLOTS_LOST):
        try:
            return writer.append(state, data, reason, state.term)
        except LostSlot as lost:
            state = lost.state
    raise Retryable(f"{MAX_SLOTS_LOST} other entries came first: try again")
