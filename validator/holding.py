"""The holding pattern of a leader: while the storage is away or this process slept, no time passes for the miners.

Invariants: a step that failed is tried again with growing waits; deadlines move by exactly the time without the
storage, or by our own sleep, and that time counts for what miners may claim, between two rounds for the next one. A
storage that answers but does not give one object is not away: deadlines stand.
"""

from __future__ import annotations

import random

from loguru import logger

from common import timeouts
from common.errors import BrigadeError
from common.store.retry import RetryPolicy
from validator.board import Board, asked_wait_s
from validator.round import core

HOLD = RetryPolicy()
RESTORE_TRIES = 8
"""Times in a row that a storage which answers has not given something: then a takeover goes on without it."""


class Holding:
    """How the driver of one process stands with its storage and its own sleep."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._failures = 0
        self._away_since_s: float | None = None
        self._answered = False
        """Whether the storage has answered since this step began, after a failure of the step before."""
        self._not_given = 0
        """Failures in a row though it had answered: it is not away, but does not give one thing."""
        self._stepped_s: float | None = None
        self._chosen_wait_s = 0.0
        self._began_s = board.now_s()

    @property
    def failed(self) -> bool:
        """Whether the last step failed."""
        return self._failures > 0

    @property
    def patient(self) -> bool:
        """Whether to wait on for an object that the storage does not give."""
        return self._not_given < RESTORE_TRIES

    def begin(self) -> None:
        """A step begins."""
        self._began_s, self._answered = self._board.now_s(), False

    def answered(self) -> None:
        """The storage has answered after a failure: nothing was decided before it."""
        self._answered = True
        self.release()

    def well(self) -> None:
        """The step went through."""
        self.release()
        self._board.diary.well()
        self._failures = self._not_given = 0

    def slept_on(self, wait_s: float) -> None:
        """The step is over; the next one begins after the wait."""
        self._stepped_s, self._chosen_wait_s = self._board.now_s(), wait_s

    def refused(self, refusal: BrigadeError) -> float:
        """The log's rules refused an entry. No outage: deadlines stand, so a round that can't go on ends."""
        self._board.diary.trouble("refused", str(refusal), self._began_s)
        return self._back_off(refusal)

    def notice_sleep(self) -> None:
        """A process that was stopped heard nobody: that time is not the miners' silence, and does not count.

        A wait of our own is no sleep, however long the storage asked for it: the service heard everybody meanwhile.
        """
        if self._stepped_s is None:
            return
        slept_s = self._board.now_s() - self._stepped_s - self._chosen_wait_s
        if slept_s < timeouts.ASLEEP_S:
            return
        logger.warning("this process slept for {:.1f} s: deadlines move, nobody counts as silent", slept_s)
        members = self._board.members
        awake = [member.hotkey for member in members if members.is_live(member, self._stepped_s)]
        members.expect(awake, self._board.now_s())
        if self._away_since_s is None:
            self._delay(slept_s)

    def hold(self, fault: BrigadeError) -> float:
        """The step failed for what the storage did not do; the seconds until the next one."""
        # A storage that hangs was away while the failing step waited for it. One that has just answered is not away:
        # then it is one object that can't be had, and a round that can't do without it ends by its deadline.
        if self._answered:
            self._not_given += 1
        else:
            self._not_given = 0
            self._away_since_s = self._began_s if self._away_since_s is None else self._away_since_s
        self._board.diary.trouble("object" if self._answered else "storage", str(fault), self._began_s)
        return self._back_off(fault)

    def _back_off(self, fault: BrigadeError) -> float:
        self._failures += 1
        self._board.say(f"holding: {fault}")
        return HOLD.wait_s(self._failures, asked_wait_s(fault), random.random)

    def release(self) -> None:
        """The storage has answered: the time without it does not count."""
        if self._away_since_s is not None:
            self._delay(self._board.now_s() - self._away_since_s)
        self._away_since_s = None
        self._began_s = self._board.now_s()

    def _delay(self, by_s: float) -> None:
        self._board.health.vitals.disturbed()
        current = self._board.round
        if current is None:
            self._board.held = core.longer(self._board.held, by_s)
        else:
            current.state = core.delayed(current.state, by_s)
