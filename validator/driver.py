"""The round driver: asks the pure machine what to do, does it, and asks again. It never ends by itself.

Invariants:

- All that is decided rests on the log's state; after a lost reply, a restart or a takeover the same facts lead to the
  same next step, and an entry is never appended twice.
- Losing the lead is no error: the driver follows the log and tries again when the lease allows it.
- Storage away is a holding pattern: nothing is decided, deadlines stand still, attempts back off, nothing is lost.
"""

from __future__ import annotations

import asyncio
import random

from loguru import logger

from common import timeouts
from common.blocking import in_thread
from common.errors import BrigadeError, Rejected, Retryable, SetupError
from common.runlog.commands import Order
from common.runlog.entries import EntryData, RolledBack, RoundAborted, RoundOpened
from common.runlog.rules import CONTENT_FAILURES, CONTENT_REFUSALS, REFUSALS
from common.runlog.state import RunState
from common.runlog.writer import LostSlot
from common.store.retry import RetryPolicy
from common.timeouts import LEASE_RENEW_S, METAGRAPH_REFRESH_S
from common.units import Hotkey, Revision
from validator import pausing
from validator.board import Board, asked_wait_s
from validator.effects import Effects
from validator.following import Following
from validator.orders import Orders, aborted_by, paused_by, resumed_by
from validator.restoring import known_seats, restore
from validator.round import core
from validator.round.facts import Action, Decision, Phase
from validator.round.opening import Opening, next_opening
from validator.round.tokens import proven_rates
from validator.rounds import Round, begin, carried_on, facts_of, finished, unreported
from validator.scorer import Scorer
from validator.submissions import Submissions

HOLD = RetryPolicy()
READ_ONLY = "this validator has no keys of the storage, so it never leads"
RESTORE_TRIES = 8
"""Times in a row that a storage which answers has not given something: then a takeover goes on without it."""


class Driver:
    """Drives the rounds of one run for one process."""

    def __init__(
        self, board: Board, effects: Effects, scorer: Scorer, following: Following, until_revision: Revision | None
    ) -> None:
        self._board = board
        self._effects = effects
        self._scorer = scorer
        self._following = following
        self._until = until_revision
        self._orders = Orders(board)
        self._taken_over = False
        self._before: Submissions | None = None
        """Of the round before, when this process led it."""
        self._failures = 0
        self._away_since_s: float | None = None
        self._answered = False
        """Whether the storage has answered since this step began, after a failure of the step before."""
        self._not_given = 0
        """Failures in a row though it had answered: it is not away, but does not give one thing."""
        self._stepped_s: float | None = None
        self._chosen_wait_s = 0.0
        self._began_s = board.now_s()

    async def run(self) -> None:
        """Step for ever."""
        keeping = asyncio.create_task(self.keep_lease(LEASE_RENEW_S / 2), name="lease")
        try:
            while True:
                await asyncio.sleep(await self.step())
        finally:
            keeping.cancel()
            self._following.stop()

    async def step(self) -> float:
        """Do what is to be done now; the seconds until the next look. Raises only what is a mistake of ours."""
        self._notice_sleep()
        self._board.diary.at("looking at log and lease", self._board.now_s())
        wait_s = await self._try_step()
        self._board.diary.done()
        self._stepped_s, self._chosen_wait_s = self._board.now_s(), wait_s
        return wait_s

    async def _try_step(self) -> float:
        self._began_s, self._answered = self._board.now_s(), False
        try:
            wait_s = await self._step()
        except LostSlot as lost:
            self._say(f"{lost.message}: looking again")
            self._board.leadership.check()
            return 0.0
        except (Retryable, SetupError) as fault:
            # SetupError: a bucket that is being restored, keys that are being changed. It was right at the start.
            return self._hold(fault)
        except Rejected as refusal:
            if refusal.code not in REFUSALS:
                return self._hold(refusal)
            # The log's rules refused an entry: somebody else has moved on, or we have a bug. The log tells which. No
            # outage: deadlines stand, so a round that can't go on ends.
            if self._board.leadership.check():
                logger.error("the log refuses our entry: {}", refusal)
            self._board.diary.trouble("refused", str(refusal), self._began_s)
            return self._back_off(refusal)
        self._release()
        self._board.diary.well()
        self._failures = self._not_given = 0
        return wait_s

    async def _step(self) -> float:
        board = self._board
        if self._failures:
            await board.leadership.renew(force=True)  # is the store back? nothing is decided before it is
            self._answered = True
            self._release()
        if not board.leadership.check():
            return await self._follow()
        await self._following.look(0.0)  # what was committed just before the takeover
        if refusal := self._following.refusal():
            board.leadership.resign(refusal)
            return 0.0
        if not self._taken_over:
            await self._take_over()
        order = await self._orders.due(board.journal.state)
        if board.round is None:
            return await self._open(order)
        return await self._advance(order)

    async def _follow(self) -> float:
        board = self._board
        self._taken_over = False
        board.round = None
        refusal = READ_ONLY if board.read_only else self._following.refusal()
        if refusal:
            await board.leadership.stand_by(refusal)
        elif await board.leadership.try_lead():
            return 0.0
        more = await self._following.look(timeouts.FOLLOWER_LOOK_S)
        why = self._following.refusal() or board.leadership.reason
        self._say(f"following, {self._following.progress()}: {why}")
        return 0.0 if more else timeouts.FOLLOWER_LOOK_S

    async def _take_over(self) -> None:
        """Everything that a leader needs, from log and bucket."""
        board = self._board
        board.diary.at("taking over: seats, and what rounds before left", board.now_s())
        await board.membership.refresh_if_stale()
        if board.membership.metagraph is None:
            raise Retryable("the chain does not answer yet, so nobody's seat is known", METAGRAPH_REFRESH_S)
        self._before = None
        board.members.expect(sorted(self._expected()), board.now_s())
        await self._make_up()
        self._taken_over = True

    async def _make_up(self) -> None:
        """Score the committed rounds whose reports are missing, oldest first."""
        board, run = self._board, self._board.journal.state
        for missing in await in_thread(lambda: unreported(run, board.reader, board.standing.reported_round)):
            if missing.run.head not in self._following.wrong:
                self._scorer.add(missing)

    def _expected(self) -> set[Hotkey]:
        """Who may be at work: who was in the last report, or before the first one every seat but the validators'."""
        report = self._board.standing.report
        if report is not None:
            return {member.hotkey for member in report.members if member.decision != "absent"}
        return self._all_hotkeys() - {*self._board.journal.state.ever_validators, self._board.spec.owner}

    def _all_hotkeys(self) -> set[Hotkey]:
        metagraph = self._board.membership.metagraph
        return {neuron.hotkey for neuron in metagraph.neurons} if metagraph else set()

    async def _open(self, order: Order | None) -> float:
        """Hold the open round, or open the next one, unless the run has reached its end or stands still."""
        board = self._board
        run = board.journal.state
        if run.open_round is None:
            if order is not None and order.command.action in ("rollback", "pause"):
                await self._obey(run, order)
                return 0.0
            resumption = order.sha256 if order is not None and order.command.action == "resume" else None
            opening = next_opening(run, self._until, resumption)
            if opening.do != "open":
                return await self._not_now(run, opening)
            await board.membership.refresh_for_round()
            board.membership.new_round()
            late = f", waiting for {len(run.deferred)} that the last plan deferred" if run.deferred else ""
            run = await self._append(RoundOpened(run.next_round, run.head), opening.reason + late)
        board.round = await self._begin(run)
        return 0.0

    async def _obey(self, run: RunState, order: Order) -> None:
        """Pause, or go back to an earlier revision whose objects are all there."""
        if order.command.action == "pause":
            await self._append(paused_by(order), "the owner orders it")
            return
        revision = order.command.revision
        assert revision is not None
        if not await self._can_obey(run, order):
            return
        self._before = None  # nothing that was sent before counts any more
        reason = f"from revision {run.head}; what was trained and sent since counts for nothing"
        await self._append(RolledBack(revision, order.sha256), reason)

    async def _can_obey(self, run: RunState, order: Order) -> bool:
        """Whether the revision to go back to can be had; an order for another one is passed over for good."""
        revision = order.command.revision
        problem = "" if revision is None else await self._effects.why_not_to(run, revision)
        if problem:
            self._orders.refuse(order, problem)
        return not problem

    async def _not_now(self, run: RunState, opening: Opening) -> float:
        """No round is opened: the run pauses, goes on after a pause, waits for its owner, or is done."""
        board = self._board
        if opening.do == "pause":
            entry, reason = await in_thread(lambda: pausing.pause_entry(board.reader, run))
            await self._append(entry, reason)
            return 0.0
        if opening.do == "resume":
            assert opening.order is not None
            now_ms = board.clock.wall_ns() // 1_000_000
            await self._append(resumed_by(run, opening.order, now_ms), opening.reason)
            return 0.0
        await board.leadership.renew()
        self._say(opening.reason)
        return timeouts.IDLE_LOOK_S if opening.do == "rest" else timeouts.COMMAND_LOOK_S

    async def _begin(self, run: RunState) -> Round:
        """The open round with what still counts of earlier ones, from memory or from the bucket."""
        now_s = self._board.now_s()
        current = begin(run, now_s)
        if self._before is not None:
            current.submissions.carry(self._before)
        else:
            await self._restore(current, run, now_s)
        current.submissions.closed = current.opened.plan is not None
        return current

    async def _restore(self, current: Round, run: RunState, now_s: float) -> None:
        board, opened = self._board, current.opened
        seats = known_seats(board.membership, self._all_hotkeys())
        patient = self._not_given < RESTORE_TRIES
        found = await in_thread(lambda: restore(board.store, board.reader, run, opened, seats, now_s, patient))
        for submission in found:
            current.submissions.add(submission)
        here = {submission.manifest.signer for submission in found if submission.manifest.round == opened.round}
        board.members.expect(sorted(here), now_s)

    async def _advance(self, order: Order | None) -> float:
        """One look at the open round, and at most one effect."""
        if order is not None and await self._ended_by(order):
            return 0.0
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
            self._say(told)
            await board.leadership.renew()
            return timeouts.LEADER_LOOK_S
        if decision.action is Action.REDUCE and (awaited := await self._effects.awaited(current)):
            self._say(f"round {current.state.round}: {awaited}")
            await board.leadership.renew()
            return timeouts.LEADER_LOOK_S
        board.waiting_for = told
        merging = decision.action in (Action.JUDGE, Action.REDUCE)
        board.diary.at(told, now_s, merging)
        await self._act(decision)
        return 0.0

    async def _ended_by(self, order: Order) -> bool:
        """Whether the owner's order has just ended the open round, in whatever phase it was."""
        run = self._board.journal.state
        if run.open_round is None or order.command.action not in ("rollback", "abort_round"):
            return False
        if not await self._can_obey(run, order):
            return False
        entry, reason = aborted_by(run, order)
        await self._append(entry, f"round {entry.round} aborted: {reason}")
        return True

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
            await self._append(entry, f"round {round_id} aborted: {decision.reason}; {_kept(current, entry.code)}")
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
        self._scorer.add(finished(current, board.journal.state))
        self._before = carried_on(current)
        board.round = None
        await self._effects.tidy()

    async def _append_for(self, current: Round, data: EntryData, reason: str) -> None:
        """Append an entry that the round can't go on without; if the rules refuse it, the round is given up."""
        try:
            await self._append(data, reason)
        except Rejected as refusal:
            if refusal.code in CONTENT_REFUSALS:
                current.give_up(refusal.code, refusal.message)
            raise

    async def _append(self, data: EntryData, reason: str) -> RunState:
        return await self._board.journal.append(data, reason, self._board.leadership.term)

    async def keep_lease(self, every_s: float) -> None:
        """Renew beside long effects, so that a slow merge costs no lease."""
        while True:
            await asyncio.sleep(every_s)
            try:
                await self._board.leadership.renew()
            except BrigadeError as fault:
                # Whatever the store says, the next try may be heard: without renewals the lead is lost.
                logger.warning("the lease can't be renewed: {}", fault)

    def _notice_sleep(self) -> None:
        """A process that was stopped heard nobody: that time is not the miners' silence, and does not count.

        A wait of our own is no sleep, however long the storage asked for it: the service heard everybody meanwhile.
        """
        if self._stepped_s is None:
            return
        slept_s = self._board.now_s() - self._stepped_s - self._chosen_wait_s
        if slept_s < timeouts.ASLEEP_S:
            return
        logger.warning("this process slept for {:.1f} s: deadlines move, nobody counts as silent", slept_s)
        members, current = self._board.members, self._board.round
        awake = [member.hotkey for member in members if members.is_live(member, self._stepped_s)]
        members.expect(awake, self._board.now_s())
        if current is not None and self._away_since_s is None:
            current.state = core.delayed(current.state, slept_s)

    def _hold(self, fault: BrigadeError) -> float:
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
        self._say(f"holding: {fault}")
        return HOLD.wait_s(self._failures, asked_wait_s(fault), random.random)

    def _release(self) -> None:
        """The storage has answered: the time without it does not count."""
        current = self._board.round
        if self._away_since_s is not None and current is not None:
            current.state = core.delayed(current.state, self._board.now_s() - self._away_since_s)
        self._away_since_s = None
        self._began_s = self._board.now_s()

    def _say(self, text: str) -> None:
        """Tell what is waited for, and log it when it changes in more than its figures."""
        if _kind(text) != _kind(self._board.waiting_for):
            logger.info("{}", text)
        self._board.waiting_for = text


def _kept(current: Round, code: str) -> str:
    """What becomes of the work of an aborted round."""
    if code in CONTENT_FAILURES:
        return "the base stays, and miners bring all they have again, with what they train meanwhile"
    held = sum(held.tokens for held in current.submissions.held().values())
    return f"the base stays, and what came whole ({held} tokens) counts in the next round on it"


def _kind(text: str) -> str:
    """A reason without its figures."""
    return "".join(char for char in text if not char.isdigit())
