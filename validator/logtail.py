"""The newest entries of the log, read back from its end: what the state does not hold, and a new leader must know.

Invariant: slots that count for nothing are passed over, as by everybody, and no others: one that counts and can't be
read now is waited for. Blocking; ``Retryable`` when the store stays away.
"""

from __future__ import annotations

from collections.abc import Iterator

from common import keys
from common.errors import Rejected, Retryable
from common.runlog.casput import MAX_READ_BYTES
from common.runlog.entries import Entry, RoundAborted, RoundFrozen, RoundOpened, decode_entry
from common.runlog.rules import CONTENT_FAILURES
from common.runlog.state import RunState
from common.store.port import ObjectReader
from common.units import RoundId
from validator.outages import only_facts


def newest_first(reader: ObjectReader, run: RunState) -> Iterator[Entry]:
    """The valid entries, from the last one back to the one after the genesis."""
    void = {void.seq for void in run.voids}
    for seq in range(run.next_seq - 1, 0, -1):
        if seq not in void:
            yield _entry(reader, run, seq)


def failures(reader: ObjectReader, run: RunState) -> tuple[RoundAborted, ...]:
    """The aborted rounds that ``run.failures`` counts, oldest first."""
    found: list[RoundAborted] = []
    for entry in newest_first(reader, run):
        if len(found) == len(run.failures):
            break
        if isinstance(entry.data, RoundAborted) and entry.data.code in CONTENT_FAILURES:
            found.append(entry.data)
    return tuple(reversed(found))


def last_content_failure(reader: ObjectReader, run: RunState, since: RoundId) -> RoundId | None:
    """The newest round from ``since`` on that was aborted for what it held; None when there is none."""
    for entry in newest_first(reader, run):
        data = entry.data
        if isinstance(data, RoundAborted) and data.code in CONTENT_FAILURES and data.round >= since:
            return data.round
        if isinstance(data, RoundOpened) and data.round <= since:
            return None
    return None


def plans_since(reader: ObjectReader, run: RunState, since: RoundId) -> Iterator[RoundFrozen]:
    """The plans of the rounds from ``since`` on, newest first."""
    for entry in newest_first(reader, run):
        data = entry.data
        if isinstance(data, RoundFrozen) and data.round >= since:
            yield data
        elif isinstance(data, RoundOpened) and data.round <= since:
            return


def _entry(reader: ObjectReader, run: RunState, seq: int) -> Entry:
    with only_facts():
        slot = reader.fetch(keys.log_key(run.run, seq), max_bytes=MAX_READ_BYTES)
    try:
        return decode_entry(slot, run.run)
    except Rejected as damage:
        raise Retryable(f"slot {seq} of the log was damaged on its way: {damage}") from damage
