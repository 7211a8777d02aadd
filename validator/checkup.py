"""The health desk's place in a validator: what each look rests on, and who else goes by what it finds.

The event loop calls this at the end of a committed round, when a report is adopted, and when a lead begins.
"""

from __future__ import annotations

from collections.abc import Iterable

from loguru import logger

from common.reports import Report
from common.units import Hotkey
from validator.board import Board
from validator.healthdesk import Looked, place_of
from validator.hearsay import handed_in
from validator.rounds import Round


def after_round(board: Board, current: Round) -> None:
    """Look at a round that has become a revision. A mistake of ours in it ends no round: nothing that is merged or paid
    rests on it, so what was found before stands, and the next round is looked at again."""
    try:
        _look(board, current)
    except Exception as error:  # noqa: BLE001 - see above
        logger.opt(exception=error).error(
            "the health of the miners can't be judged after round {}", current.state.round
        )


def _look(board: Board, current: Round) -> None:
    health, now_s = board.health, board.now_s()
    if current.judgement is not None:
        health.vitals.worked(current.judgement.watched)
    health.vitals.read_here(board.reads.timed())
    shown = handed_in(current.judgement, current.state.base_revision) if current.judgement is not None else {}
    live = _live(board)
    places = {}
    for member in board.members:
        seat = board.membership.known(member.hotkey)
        if seat is not None:
            places[member.hotkey] = place_of(seat.coldkey, member.host, board.asns.asn_of(member.host))
    seats = board.membership.hotkeys()
    said = health.vitals.hearsay.take(board.members, shown)
    seen = Looked(current.state.round, places, live, lambda hotkey: not seats or hotkey in seats, now_s, said)
    for line in health.look(seen, board.members.bars):
        logger.bind(event="health", round=int(seen.round)).info("round {}: {}", seen.round, line)
    _go_by(board)


def adopt(board: Board, reports: Iterable[Report]) -> None:
    """Go on from the newest of these that tells of health."""
    telling = [report for report in reports if report.health is not None]
    if telling:
        board.health.go_on_from(max(telling, key=lambda report: report.round))


def begin_lead(board: Board) -> None:
    """This process leads from here on; earlier leaders' reports were adopted."""
    board.reads.timed()
    board.health.begin_lead(_live(board))
    _go_by(board)


def _live(board: Board) -> set[Hotkey]:
    now_s = board.now_s()
    return {member.hotkey for member in board.members if board.members.is_live(member, now_s)}


def _go_by(board: Board) -> None:
    cares = board.health.cares
    board.members.cares = cares
    board.members.bars.slow = {hotkey: care.reason for hotkey, care in cares.items()}
