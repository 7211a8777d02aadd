"""The log as the driver holds it: the state it knows, and appends that never leave it in doubt.

Invariant: ``state`` is always a state that the store's slots produce. After ``LostSlot`` it contains what came first,
which may be our own entry whose reply was lost: the caller looks at the state and decides anew.
"""

from __future__ import annotations

import asyncio

from loguru import logger

from common.blocking import in_thread
from common.errors import Rejected
from common.runlog.entries import EntryData
from common.runlog.state import RunState
from common.runlog.writer import LogWriter, LostSlot
from common.units import Hotkey, Sha256


class Journal:
    """Reads and appends for one process."""

    def __init__(self, writer: LogWriter, state: RunState, hotkey: Hotkey) -> None:
        self._writer = writer
        self._hotkey = hotkey
        self._busy = asyncio.Lock()
        self.state = state

    async def catch_up(self) -> RunState:
        """Read what was appended since. ``Retryable`` when the store stays away."""
        async with self._busy:
            self.state = await in_thread(lambda: self._writer.catch_up(self.state))
            return self.state

    async def read_head(self) -> tuple[int, Sha256]:
        """The log's last slot, read now, and its hash. ``Retryable`` when the store stays away."""
        state = await self.catch_up()
        return state.next_seq - 1, state.head_sha256

    async def slot_sha256(self, seq: int) -> Sha256 | None:
        """The hash of a slot of the log as this process has read it; None when it ends before. ``Retryable``."""
        state = self.state
        if seq >= state.next_seq - 1:
            return state.head_sha256 if seq == state.next_seq - 1 else None
        return await in_thread(lambda: self._writer.slot_sha256(seq))

    async def append(self, data: EntryData, reason: str, term: int) -> RunState:
        """Append an entry of ``term``. Raises ``LostSlot``, ``Rejected`` and ``Retryable`` as ``LogWriter.append``."""
        async with self._busy:
            try:
                self.state = await in_thread(lambda: self._writer.append(self.state, data, reason[:500], term))
            except LostSlot as lost:
                self.state = lost.state
                raise
            except Rejected:
                self.state = await in_thread(lambda: self._writer.catch_up(self.state))
                raise
            logger.bind(event=type(data).__name__, seq=self.state.next_seq - 1).info("{}", reason)
            return self.state

    def may_lead(self) -> bool:
        """Whether the log, as read so far, lets this process's hotkey lead."""
        return self._hotkey in self.state.validators

    def leads(self, term: int, instance: str) -> bool:
        """Whether the log says that this very process leads ``term``, and no later one has begun."""
        last = self.state.leaders[-1] if self.state.leaders else None
        return last is not None and (last.term, last.hotkey, last.instance) == (term, self._hotkey, instance)
