"""Between two rounds: the next one is opened, or the open one is held from the log, or the run stands still or is done.

Invariant: what a round begins with rests on log and bucket, or on this process's own memory of having led the round
before; both give the same submissions.
"""

from __future__ import annotations

from common import timeouts
from common.blocking import in_thread
from common.runlog.commands import Order
from common.runlog.entries import RoundOpened
from common.runlog.state import RunState
from common.units import Revision
from validator import pausing
from validator.board import Board
from validator.collecting import Collector
from validator.holding import Holding
from validator.obeying import Obeying
from validator.orders import resumed_by
from validator.restoring import known_seats, restore
from validator.round.opening import Opening, next_opening
from validator.rounds import Round, begin


class NextRound:
    """Brings one process to the next round."""

    def __init__(
        self,
        board: Board,
        obeying: Obeying,
        holding: Holding,
        until_revision: Revision | None,
        collector: Collector,
    ) -> None:
        self._board = board
        self._obeying = obeying
        self._holding = holding
        self._until = until_revision
        self._collector = collector

    async def open(self, order: Order | None) -> float:
        """Hold the open round, or open the next one, unless the run has reached its end or stands still."""
        board = self._board
        run = board.journal.state
        if run.open_round is None:
            if order is not None and order.command.action in ("rollback", "pause"):
                await self._obeying.obey(run, order)
                return 0.0
            resumption = order.sha256 if order is not None and order.command.action == "resume" else None
            opening = next_opening(run, self._until, resumption)
            if opening.do != "open":
                return await self._not_now(run, opening)
            await board.membership.refresh_for_round()
            board.membership.new_round()
            await self._collector.at_boundary()
            run = board.journal.state
            late = f", waiting for {len(run.deferred)} that the last plan deferred" if run.deferred else ""
            run = await board.append(RoundOpened(run.next_round, run.head), opening.reason + late)
        board.round = await self._begin(run)
        return 0.0

    async def _not_now(self, run: RunState, opening: Opening) -> float:
        """No round is opened: the run pauses, goes on after a pause, waits for its owner, or is done."""
        board = self._board
        if opening.do == "pause":
            entry, reason = await in_thread(lambda: pausing.pause_entry(board.reader, run))
            await board.append(entry, reason)
            return 0.0
        if opening.do == "resume":
            assert opening.order is not None
            now_ms = board.clock.wall_ns() // 1_000_000
            await board.append(resumed_by(run, opening.order, now_ms), opening.reason)
            return 0.0
        await board.leadership.renew()
        board.say(opening.reason)
        return timeouts.IDLE_LOOK_S if opening.do == "rest" else timeouts.COMMAND_LOOK_S

    async def _begin(self, run: RunState) -> Round:
        """The open round with what still counts of earlier ones, from memory or from the bucket."""
        now_s = self._board.now_s()
        current = begin(run, now_s, self._board.held)
        if self._board.carried is not None:
            current.submissions.carry(self._board.carried)
        else:
            await self._restore(current, run, now_s)
        current.submissions.closed = current.opened.plan is not None
        return current

    async def _restore(self, current: Round, run: RunState, now_s: float) -> None:
        board, opened = self._board, current.opened
        seats = known_seats(board.membership, board.membership.hotkeys())
        patient = self._holding.patient
        found = await in_thread(lambda: restore(board.store, board.reader, run, opened, seats, now_s, patient))
        for submission in found:
            current.submissions.add(submission)
        here = {submission.manifest.signer for submission in found if submission.manifest.round == opened.round}
        board.members.expect(sorted(here), now_s)
        board.members.note_earlier(here)
