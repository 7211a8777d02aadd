"""Which of the owner's commands is due, and which has nothing to say any more. Pure.

Invariants: a command is obeyed at most once, since the log's entry names its hash; one that was signed before a later
pause, resumption or rollback of its own kind changes nothing any more, so that an order typed twice is obeyed once, and
an old one never comes back; whoever leads comes to the same answer, for it rests on the log and the bucket alone.
"""

from __future__ import annotations

from collections.abc import Iterable

from common.runlog.commands import Action, Command, Order
from common.runlog.entries import EntryData, Paused, Resumed, RolledBack, RoundAborted
from common.runlog.state import RunState
from common.units import Revision, RoundId

URGENCY: tuple[Action, ...] = ("rollback", "abort_round", "resume", "pause")
"""Of several orders the first of these is obeyed first; of two of a kind the later one, which voids the other."""


def due(state: RunState, orders: Iterable[Order]) -> Order | None:
    """The order to obey next; None when there is none. A pause, and a resumption, wait while a round is open."""
    standing = [order for order in orders if not why_not(state, order.command) and order.sha256 not in state.obeyed]
    if not standing:
        return None
    return min(standing, key=lambda order: (URGENCY.index(order.command.action), -order.command.at_ms, order.sha256))


def why_not(state: RunState, command: Command) -> str:
    """Why a command has nothing to say now; empty when it stands."""
    if command.seq >= state.next_seq:
        return f"it answers slot {command.seq}, which is not written yet"
    if command.action == "resume":
        held = state.paused is not None and state.paused.seq == command.seq
        return "" if held else "the pause that it ends is over"
    if command.action == "pause":
        late = command.seq < state.switched_seq or state.paused is not None
        return "the run was paused or resumed since" if late else ""
    if command.action == "abort_round":
        held = state.open_round is not None and state.open_round.round == command.round
        return "" if held else f"round {command.round} is not open"
    if state.rollback is not None and command.seq < state.rollback.seq:
        return "the run was rolled back since"
    if command.revision is None or command.revision not in state.revisions:
        return f"the log does not know revision {command.revision}"
    return state.why_gone(command.revision)


def ordered_by(data: EntryData) -> tuple[Action, Revision | None, RoundId | None] | None:
    """What the command behind an entry orders; None for an entry that no command is behind."""
    if isinstance(data, RolledBack):
        return "rollback", data.revision, None
    if isinstance(data, RoundAborted):
        return "abort_round", None, data.round
    if isinstance(data, Resumed):
        return "resume", None, None
    return ("pause", None, None) if isinstance(data, Paused) else None
