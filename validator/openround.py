"""The open round: asks the pure machine what to do with it, and does it, one effect a look.

Invariant: what the machine decides rests on the log's state and on what was delivered, so after a lost reply, a restart
or a takeover the same facts lead to the same effect, and no entry is appended twice.
"""

from __future__ import annotations

from common import timeouts
from common.errors import Rejected
from common.runlog.commands import Order
from common.runlog.entries import EntryData, RoundAborted
from common.runlog.rules import CONTENT_FAILURES, CONTENT_REFUSALS
from validator import checkup, pausing
from validator.board import Board
from validator.effects import Effects
from validator.round import core
from validator.round.facts import Action, Decision, Phase
from validator.round.tokens import proven_rates
from validator.rounds import Round, carried_on, facts_of, finished
from validator.scorer import Scorer


class OpenRound:
    """Carries the open round of one process on."""

    def __init__(self, board: Board, effects: Effects, scorer: Scorer) -> None:
        self._board = board
        self._effects = effects
        self._scorer = scorer

    async def advance(self, order: Order | None) -> float:
        """One look at the open round, and at most one effect."""
        board, current = self._board, self._board.round
        assert current is not None
        now_s, run = board.now_s(), board.journal.state
        current.follow(run, lambda: self._effects.coldkeys(current))
        decision = core.tick(current.state, facts_of(current, run, board.members, now_s), now_s, current.policy)
        if decision.action is Action.JUDGE and not current.why_frozen:
            current.why_frozen = decision.reason.removesuffix(": judging what was delivered")
        current.state = decision.state
        told = f"round {current.state.round}: {decision.reason}"
        if order is not None and order.command.action == "pause":
            told += f"; pausing after round {current.state.round}, as its owner orders"
        if decision.action is Action.WAIT:
            board.say(told)
            await board.leadership.renew()
            return timeouts.LEADER_LOOK_S
        if decision.action is Action.REDUCE and (awaited := await self._effects.awaited(current)):
            board.say(f"round {current.state.round}: {awaited}")
            await board.leadership.renew()
            return timeouts.LEADER_LOOK_S
        board.waiting_for = told
        merging = decision.action in (Action.JUDGE, Action.REDUCE)
        board.diary.at(told, now_s, merging)
        await self._act(decision)
        return 0.0

    async def _act(self, decision: Decision) -> None:
        current = self._board.round
        assert current is not None
        round_id, base = current.state.round, current.state.base_revision
        if decision.action is Action.JUDGE:
            await self._effects.judge(current)
        elif decision.action is Action.PLAN:
            assert current.judgement is not None
            plan = current.judgement.plan(round_id, base, 0)
            why = f"{current.why_frozen}: " if current.why_frozen else ""
            await self._append_for(current, plan, f"round {round_id} {why}{decision.reason}")
        elif decision.action is Action.REPLAN:
            assert current.redo is not None
            assert current.harm is not None
            plan = current.redo.plan(round_id, base, current.harm.attempt + 1)
            await self._append_for(current, plan, f"round {round_id} {decision.reason} ({current.why_harm})")
        elif decision.action is Action.REDUCE:
            await self._effects.reduce(current)
        elif decision.action is Action.COMMIT:
            assert current.merged is not None
            told = f"round {round_id} {current.merged.told}"
            await self._append_for(current, current.merged.commit, told)
        elif decision.action is Action.ABORT:
            entry = RoundAborted(round_id, base, decision.state.code, pausing.bounded(decision.state.evidence))
            told = f"round {round_id} aborted: {decision.reason}; {_kept(current, entry.code)}"
            await self._board.append(entry, told)
            self._board.diary.abort(entry.code, base, self._board.now_s())
        elif decision.action is Action.END:
            await self._end(current)

    async def _end(self, current: Round) -> None:
        """Note what the round has shown, hand it to the scorer, and make room."""
        board = self._board
        self._effects.keep_head(current)
        if current.state.phase is Phase.COMMITTED:
            judgement = current.judgement
            if judgement is not None:
                board.members.prove(proven_rates(judgement.watched, board.members.proven()))
            board.members.note_committed(current.state.round, current.named(), current.came())
            checkup.after_round(board, current)
        self._scorer.add(finished(current, board.journal.state))
        board.carried, board.held = carried_on(current), core.held_on(current.state)
        board.round = None
        await self._effects.tidy()

    async def _append_for(self, current: Round, data: EntryData, reason: str) -> None:
        """Append an entry that the round can't go on without; if the rules refuse it, the round is given up."""
        try:
            await self._board.append(data, reason)
        except Rejected as refusal:
            if refusal.code in CONTENT_REFUSALS:
                current.give_up(refusal.code, refusal.message)
            raise


def _kept(current: Round, code: str) -> str:
    """What becomes of the work of an aborted round."""
    if code in CONTENT_FAILURES:
        return "the base stays, and miners bring all they have again, with what they train meanwhile"
    held = sum(held.tokens for held in current.submissions.held().values())
    return f"the base stays, and what came whole ({held} tokens) counts in the next round on it"
