"""What a leader does when the owner's order is due: it ends the open round, rolls back, pauses.

Invariant: an order that can't be obeyed (a revision that is gone) changes nothing, ends no round, and is said once.
"""

from __future__ import annotations

from common.runlog.commands import Order
from common.runlog.entries import RolledBack
from common.runlog.state import RunState
from validator.board import Board
from validator.effects import Effects
from validator.orders import Orders, aborted_by, paused_by
from validator.round.facts import Held


class Obeying:
    """Obeys one order at a time, for one process."""

    def __init__(self, board: Board, effects: Effects) -> None:
        self._board = board
        self._effects = effects
        self._orders = Orders(board)

    async def due(self) -> Order | None:
        """What to obey now."""
        return await self._orders.due(self._board.journal.state)

    async def ended_by(self, order: Order) -> bool:
        """Whether the owner's order has just ended the open round, in whatever phase it was."""
        run = self._board.journal.state
        if run.open_round is None or order.command.action not in ("rollback", "abort_round"):
            return False
        if not await self._can_obey(run, order):
            return False
        entry, reason = aborted_by(run, order)
        await self._board.append(entry, f"round {entry.round} aborted: {reason}")
        return True

    async def obey(self, run: RunState, order: Order) -> None:
        """Pause, or go back to an earlier revision whose objects are all there."""
        if order.command.action == "pause":
            await self._board.append(paused_by(order), "the owner orders it")
            return
        revision = order.command.revision
        assert revision is not None
        if not await self._can_obey(run, order):
            return
        # Nothing that was sent or trained before counts any more.
        self._board.carried, self._board.held = None, Held()
        reason = f"from revision {run.head}; what was trained and sent since counts for nothing"
        await self._board.append(RolledBack(revision, order.sha256), reason)

    async def _can_obey(self, run: RunState, order: Order) -> bool:
        """Whether the revision to go back to can be had; an order for another one is passed over for good."""
        revision = order.command.revision
        problem = "" if revision is None else await self._effects.why_not_to(run, revision)
        if problem:
            self._orders.refuse(order, problem)
        return not problem
