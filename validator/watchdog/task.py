"""The watchdog of one validator process: a task that looks once a second, whatever the driver hangs on.

A stall is logged when it begins, when its reason changes in more than its figures, and when it ends, with how long it
lasted. The board holds what stands still now; status and heartbeats answer with it.
"""

from __future__ import annotations

import asyncio

from loguru import logger

from common import timeouts
from common.units import Revision
from validator.board import Board
from validator.round.deadlines import Deadlines
from validator.watchdog.core import find
from validator.watchdog.facts import Limits, Stall
from validator.watchdog.gather import gather
from validator.watchdog.marks import Marks

Name = tuple[str, str]


class Watchdog:
    """Looks at one board. The event loop owns it."""

    def __init__(self, board: Board, until_revision: Revision | None) -> None:
        self._board = board
        self._until = until_revision
        self._limits = Limits.of(Deadlines.of(board.spec))
        self._marks = Marks(board.now_s())
        self._looked_s = board.now_s()
        self._troubled = False
        self._told: dict[Name, Stall] = {}

    async def run(self) -> None:
        """Look for ever."""
        while True:
            self.look()
            await asyncio.sleep(timeouts.WATCH_LOOK_S)

    def look(self) -> tuple[Stall, ...]:
        """What stands still now; the board and the log have it as well."""
        now_s, fault = self._board.now_s(), self._board.diary.fault
        asleep = now_s - self._looked_s > timeouts.ASLEEP_S
        if asleep or (self._troubled and fault is None):
            self._marks.wake(now_s)  # while this process was stopped, or the storage away, nothing could move
        self._looked_s, self._troubled = now_s, fault is not None
        found = find(gather(self._board, self._marks, self._until), self._limits)
        self._tell({(stall.code, stall.subject): stall for stall in found})
        self._board.stalls = found
        return found

    def _tell(self, present: dict[Name, Stall]) -> None:
        for name, stall in present.items():
            before = self._told.get(name)
            if before is None or _kind(before.text) != _kind(stall.text):
                _log(stall)
        for name, over in self._told.items():
            if name not in present:
                lasted_s = round(over.for_s, 1)
                facts = {"code": over.code, "of": over.level, "lasted_s": lasted_s}
                logger.bind(event="stall_over", **facts).info("{} is over after {:.0f} s", over.code, lasted_s)
        self._told = present


def _log(stall: Stall) -> None:
    facts = {"code": stall.code, "of": stall.level, "for_s": round(stall.for_s, 1), "holds": stall.holds}
    logger.bind(event="stall", **facts).warning("{}", stall.text)


def _kind(text: str) -> str:
    """A reason without its figures."""
    return "".join(char for char in text if not char.isdigit() and char != ".")
