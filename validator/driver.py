"""The round driver: follows, takes over and leads, one step after the other. It never ends by itself.

Invariants:

- All that is decided rests on the log's state; after a lost reply, a restart or a takeover the same facts lead to the
  same next step, and an entry is never appended twice.
- Losing the lead is no error: the driver follows the log and tries again when the lease allows it.
- A leader that no miner reaches gives the lead up for a while, if another validator may lead.
- Storage away is a holding pattern: nothing is decided, deadlines stand still, attempts back off, nothing is lost.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from loguru import logger

from common import timeouts
from common.blocking import in_thread, leave
from common.errors import BrigadeError, Rejected, Retryable, SetupError
from common.runlog.lease import slot_age_s
from common.runlog.rules import REFUSALS
from common.runlog.writer import LostSlot
from common.timeouts import LEASE_RENEW_S, METAGRAPH_REFRESH_S
from common.units import Hotkey, Revision
from validator import checkup
from validator.alone import Alone, Facts
from validator.board import Board
from validator.collecting import Collector
from validator.effects import Effects
from validator.following import Following
from validator.handover import known_before
from validator.holding import Holding
from validator.nextround import NextRound
from validator.obeying import Obeying
from validator.openround import OpenRound
from validator.round import deadlines
from validator.rounds import unreported
from validator.scorer import Scorer
from validator.scoring import reports

READ_ONLY = "this validator has no keys of the storage, so it never leads"


class Driver:
    """Drives the rounds of one run for one process."""

    def __init__(
        self, board: Board, effects: Effects, scorer: Scorer, following: Following, until_revision: Revision | None
    ) -> None:
        self._board = board
        self._effects = effects
        self._scorer = scorer
        self._following = following
        self._holding = Holding(board)
        self._obeying = Obeying(board, effects)
        self.collector = Collector(board)
        self._next = NextRound(board, self._obeying, self._holding, until_revision, self.collector)
        self._open = OpenRound(board, effects, scorer)
        self._alone = Alone(board.spec.round.member_timeout_s)
        self._until = until_revision
        self._taken_over = False

    async def run(self) -> None:
        """Step for ever."""
        keeping = asyncio.create_task(self.keep_lease(LEASE_RENEW_S / 2), name="lease")
        try:
            while True:
                await asyncio.sleep(await self.step())
        finally:
            await leave(keeping)
            await self._effects.stop()
            await self._following.stop()
            await self.collector.stop()

    async def step(self) -> float:
        """Do what is to be done now; the seconds until the next look. Raises only what is a mistake of ours."""
        self._holding.notice_sleep()
        self._board.diary.at("looking at log and lease", self._board.now_s())
        wait_s = await self._try_step()
        self._board.diary.done()
        self._holding.slept_on(wait_s)
        return wait_s

    async def _try_step(self) -> float:
        self._holding.begin()
        try:
            wait_s = await self._step()
        except LostSlot as lost:
            self._board.say(f"{lost.message}: looking again")
            self._board.leadership.check()
            return 0.0
        except (Retryable, SetupError) as fault:
            # SetupError: a bucket that is being restored, keys that are being changed. It was right at the start.
            return self._holding.hold(fault)
        except Rejected as refusal:
            if refusal.code not in REFUSALS:
                return self._holding.hold(refusal)
            # Somebody else has moved on, or we have a bug. The log tells which.
            if self._board.leadership.check():
                logger.error("the log refuses our entry: {}", refusal)
            return self._holding.refused(refusal)
        self._holding.well()
        return wait_s

    async def _step(self) -> float:
        board = self._board
        if self._holding.failed:
            await board.leadership.renew(force=True)  # is the store back? nothing is decided before it is
            self._holding.answered()
        if not board.leadership.check():
            return await self._follow()
        await self._following.look(0.0)  # what was committed just before the takeover
        if refusal := self._following.refusal():
            board.leadership.resign(refusal)
            return 0.0
        if lonely := self._alone.lonely(self._company()):
            board.leadership.resign(lonely)
            return 0.0
        if not self._taken_over:
            await self._take_over()
        order = await self._obeying.due()
        if board.round is None:
            return await self._next.open(order)
        if order is not None and await self._obeying.ended_by(order):
            return 0.0
        return await self._open.advance(order)

    async def _follow(self) -> float:
        board = self._board
        self._taken_over = False
        board.round = None
        refusal = READ_ONLY if board.read_only else self._following.refusal() or self._alone.away(board.now_s())
        if refusal:
            await board.leadership.stand_by(refusal)
        elif await board.leadership.try_lead():
            return 0.0
        more = await self._following.look(timeouts.FOLLOWER_LOOK_S)
        why = self._following.refusal() or board.leadership.reason
        self._board.say(f"following, {self._following.progress()}: {why}")
        return 0.0 if more else timeouts.FOLLOWER_LOOK_S

    def _company(self) -> Facts:
        board, run = self._board, self._board.journal.state
        merging = run.open_round is not None and run.open_round.plan is not None
        done = self._until is not None and run.head >= self._until
        others = len({*run.validators} - {board.signer.hotkey})
        return Facts(board.now_s(), board.members.beat_s, others, merging or done)

    async def _take_over(self) -> None:
        """Everything that a leader needs, from log and bucket."""
        board = self._board
        board.diary.at("taking over: seats, and what rounds before left", board.now_s())
        await board.membership.refresh_if_stale()
        if board.membership.metagraph is None:
            raise Retryable("the chain does not answer yet, so nobody's seat is known", METAGRAPH_REFRESH_S)
        board.carried = None
        run = board.journal.state
        passed_s = await in_thread(lambda: slot_age_s(board.store, run.run, run.turned_seq))
        board.held = deadlines.unseen(run, passed_s)
        expected = sorted(self._expected())
        board.members.expect(expected, board.now_s())
        board.members.note_earlier(expected)
        await self._learn()
        await self._make_up()
        self._taken_over = True

    async def _learn(self) -> None:
        """What members have shown, to this validator's own scoring and to the leaders before it."""
        board, run = self._board, self._board.journal.state
        if board.standing.report is not None:
            board.members.support(reports.supported(board.standing.report))
        convicted = self._following.convicted()
        own = board.signer.hotkey
        before = await in_thread(lambda: known_before(board.store, run, own, convicted))
        board.members.note_earlier(before.rates)
        board.members.learn(before.rates)
        for hotkey, bar in before.bars.items():
            board.members.bars.add(hotkey, bar)
        checkup.adopt(board, before.reports)
        checkup.begin_lead(board)

    async def _make_up(self) -> None:
        """Score the committed rounds whose reports are missing, oldest first."""
        board, run = self._board, self._board.journal.state
        for missing in await in_thread(lambda: unreported(run, board.reader, board.standing.reported_round)):
            if not self._following.is_wrong(missing.run.head):
                self._scorer.add(replace(missing, lies=self._following.lies_of(missing.round)))

    def _expected(self) -> set[Hotkey]:
        """Who may be at work: who was in the last report, or before the first one every seat but the validators'."""
        report = self._board.standing.report
        if report is not None:
            return {member.hotkey for member in report.members if member.decision != "absent"}
        return self._board.membership.hotkeys() - {*self._board.journal.state.ever_validators, self._board.spec.owner}

    async def keep_lease(self, every_s: float) -> None:
        """Renew beside long effects, so that a slow merge costs no lease."""
        while True:
            await asyncio.sleep(every_s)
            try:
                await self._board.leadership.renew()
            except BrigadeError as fault:
                # Whatever the store says, the next try may be heard: without renewals the lead is lost.
                logger.warning("the lease can't be renewed: {}", fault)
