"""The run log as one simulated validator holds it: facts alone, or real entries in a store in memory.

With one validator and no bucket, entries are facts that passed the log's rules. With several each has the production
journal over one store, so that they race for slots as real ones do. Invariant: ``state`` is what the log's rules make
of the entries read so far; whoever loses a slot gets ``LostSlot`` and a state that holds what came first.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from common import keys
from common.clock import Clock
from common.runlog.casput import Patience, read_now
from common.runlog.entries import Entry, EntryData
from common.runlog.reader import walk
from common.runlog.replay import apply_entry
from common.runlog.state import RunState
from common.runlog.writer import LogWriter
from common.spec import RunSpec
from common.store.port import ObjectStore
from common.store.retry import RetryPolicy
from common.units import Hotkey, sha256_hex
from validator.journal import Journal

ONCE = Patience(RetryPolicy(attempts=2), sleep=lambda _: None, uniform=lambda: 0.0)
"""Virtual time stands still inside a call: whoever fails twice tries again by an event."""
Finish = Callable[[Coroutine[Any, Any, object]], object]
"""Runs what production awaits, to its end."""


class Log(Protocol):
    """What a validator knows of the log, and its way to write."""

    @property
    def state(self) -> RunState:
        """What the log says, as far as it was read."""
        ...

    def append(self, data: EntryData, reason: str, new_term: bool = False) -> None:
        """An entry of the present term, or of the next. Raises as ``LogWriter.append``."""
        ...


@dataclass
class FactsLog:
    """Entries that nobody signed, checked by the log's rules; their hashes are names, not proofs."""

    spec: RunSpec
    leader: Hotkey
    clock: Clock
    state: RunState

    def append(self, data: EntryData, reason: str, new_term: bool = False) -> None:
        state = self.state
        entry = Entry(
            run=self.spec.run,
            signer=self.leader,
            seq=state.next_seq,
            prev=state.head_sha256,
            term=state.term + new_term,
            nonce="0" * 32,
            at_ms=self.clock.wall_ns() // 1_000_000,
            reason=reason,
            data=data,
            slot_sha256=sha256_hex(f"{state.head_sha256}{state.next_seq}".encode()),
        )
        self.state = apply_entry(state, entry)


class StoreLog:
    """Real entries of the one writer that there is."""

    def __init__(self, writer: LogWriter, state: RunState) -> None:
        self._writer = writer
        self.state = state

    def append(self, data: EntryData, reason: str, new_term: bool = False) -> None:
        self.state = self._writer.append(self.state, data, reason, self.state.term + new_term)


class JournalLog:
    """One of several writers: the production journal, awaited to its end."""

    def __init__(self, journal: Journal, finish: Finish, term: Callable[[], int]) -> None:
        """``term``: the one that this process believes to lead."""
        self._journal = journal
        self._finish = finish
        self._term = term

    @property
    def state(self) -> RunState:
        return self._journal.state

    def append(self, data: EntryData, reason: str, new_term: bool = False) -> None:
        assert not new_term, "the lead is taken with the lease"
        self._finish(self._journal.append(data, reason, self._term()))


@dataclass(frozen=True)
class News:
    """What one slot did."""

    before: RunState
    data: EntryData | None
    """None for a void one."""
    after: RunState


class WatchedLog:
    """The log as nobody's process sees it: whatever lies in the store counts at once. It is never written."""

    def __init__(self, store: ObjectStore, spec: RunSpec, state: RunState) -> None:
        self._store = store
        self._spec = spec
        self.state = state

    def append(self, data: EntryData, reason: str, new_term: bool = False) -> None:
        raise NotImplementedError("only validators write")

    def news(self) -> Iterator[News]:
        """The slots that were filled since the last look, oldest first."""
        for step in walk(self._spec, self._slot, self.state):
            before, self.state = self.state, step.state
            data = None if step.void is not None or step.entry is None else step.entry.data
            yield News(before, data, step.state)

    def _slot(self, seq: int) -> bytes | None:
        found = read_now(self._store, keys.log_key(self._spec.run, seq), ONCE)
        return None if found is None else found.body
