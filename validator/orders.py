"""The owner's orders as a leader finds them: listed every few seconds in every phase, read once, obeyed when due.

Invariant: what is due rests on log and bucket alone (``common/runlog/orders.py``), so a restarted or another leader
finds the same. An order that can't be obeyed, or comes too late, is said once and passed over.
"""

from __future__ import annotations

from loguru import logger

from common.blocking import in_thread
from common.runlog.commands import Order, read_orders
from common.runlog.entries import Paused, Resumed, RoundAborted
from common.runlog.orders import due, why_not
from common.runlog.rules import ORDERED
from common.runlog.state import RunState
from common.timeouts import COMMAND_LOOK_S
from common.units import Sha256
from validator.board import Board
from validator.outages import only_facts

ROLLED_BACK = "rolled_back"
"""Code of a round that ends since a rollback was ordered."""


class Orders:
    """The owner's orders, for one process. The event loop owns it."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._found: dict[Sha256, Order] = {}
        self._passed: set[Sha256] = set()
        self._looked_s: float | None = None

    async def due(self, run: RunState) -> Order | None:
        """What to obey now. ``Retryable`` when the storage does not answer; the next look comes no sooner for it, so a
        storage that gives everything but the list holds up no round."""
        now_s = self._board.now_s()
        if self._looked_s is None or now_s - self._looked_s >= COMMAND_LOOK_S:
            self._looked_s = now_s
            await self._look(run)
            self._looked_s = self._board.now_s()
        return due(run, (order for order in self._found.values() if order.sha256 not in self._passed))

    def refuse(self, order: Order, why: str) -> None:
        """It can't be obeyed, ever."""
        self._passed.add(order.sha256)
        logger.error("the owner's order {}… to {} is passed over: {}", order.sha256[:8], order.command.action, why)

    async def _look(self, run: RunState) -> None:
        known = run.obeyed | self._found.keys()
        for order in await in_thread(lambda: self._read(run, frozenset(known))):
            self._found[order.sha256] = order
            objection = why_not(run, order.command)
            if objection:
                logger.warning("an order to {} says nothing now: {}", order.command.action, objection)

    def _read(self, run: RunState, known: frozenset[Sha256]) -> tuple[Order, ...]:
        with only_facts():
            return read_orders(self._board.store, run.spec, known)


def aborted_by(run: RunState, order: Order) -> tuple[RoundAborted, str]:
    """The entry that ends the open round for an abort or a rollback, and its reason. Pure."""
    opened, name = run.open_round, f"{order.sha256[:8]}…"
    assert opened is not None
    if order.command.action == "abort_round":
        fact = f"the owner orders its end ({name})"
        return RoundAborted(opened.round, opened.base_revision, ORDERED, (fact,), order.sha256), fact
    fact = f"the owner orders the run back to revision {order.command.revision} ({name})"
    return RoundAborted(opened.round, opened.base_revision, ROLLED_BACK, (fact,)), fact


def paused_by(order: Order) -> Paused:
    """The entry that obeys an order to pause."""
    return Paused(ORDERED, (f"the owner orders it ({order.sha256[:8]}…)",), order.sha256)


def resumed_by(run: RunState, order: Sha256, now_ms: int) -> Resumed:
    """The entry that ends the present pause; after a long one it says that the run went cold."""
    assert run.paused is not None
    return Resumed(order, now_ms - run.paused.at_ms > run.spec.restart.cold_after_s * 1000)
