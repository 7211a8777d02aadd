"""The two heavy effects of a round: judging what was delivered, and merging what the plan accepted.

Both work on frozen facts in worker threads; what they found is noted on the round by the event loop. Either may be
repeated at any time: nothing they write can differ, since every object is named by its hash.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from loguru import logger

from common.blocking import in_thread
from common.errors import Rejected, Retryable
from common.keys import delta_key
from common.runlog.entries import PlanMember
from common.runlog.remerge import read_delta
from common.runlog.rules import MAX_ATTEMPTS
from common.runlog.state import RunState
from common.units import Coldkey, Hotkey, Revision
from validator import merging
from validator.board import Board
from validator.butterfly import Butterfly
from validator.checks import Finding
from validator.gating import Entrant, judge, sharing
from validator.harm import Search, Trouble, examine
from validator.heads import Heads, Memories
from validator.intake import Intake
from validator.judgement import without
from validator.means import Handed, Means, gather
from validator.round.deadlines import reading_left_s, seconds_left
from validator.round.facts import Harm
from validator.rounds import Round
from validator.scorer import Scorer, weights_of
from validator.submissions import Standing, Submission
from validator.uploads import Uploads

T = TypeVar("T")
LEFT_OUT = Finding("not_uploaded", "the storage answers, but does not give this object")
LEAST_LOOK_S = 1.0
"""For a look that comes when the time for reading is over: enough for what is at hand."""
TRIAL_SHARE = 1 / (2 * MAX_ATTEMPTS)
"""Of the time to finish a round: what one search for suspects may take."""


@dataclass(frozen=True)
class Spoilt:
    """The merge does harm, and means that miners handed in are a part of it: so it says nothing of the deltas yet."""

    why: str


class Effects:
    """Judge and reduce, for one process."""

    def __init__(
        self,
        board: Board,
        heads: Heads,
        intake: Intake,
        scorer: Scorer,
        uploads: Uploads,
        butterfly: Butterfly | None = None,
    ) -> None:
        self._board = board
        self._heads = heads
        self._intake = intake
        self._scorer = scorer
        self._uploads = uploads
        self._butterfly = butterfly

    async def judge(self, current: Round) -> None:
        """Close the submissions, look a last time for what nobody announced as complete, read it, run the gates."""
        board, run = self._board, self._board.journal.state
        base = current.state.base_revision
        current.submissions.closed = True
        board.health.vitals.frozen(board.now_s(), lambda hotkey: board.members.lives(hotkey, board.now_s()))
        await self._last_looks(current, current.submissions.unfinished())
        while unchecked := current.submissions.unchecked():
            await self._last_looks(current, unchecked)
        entrants = [self._entrant(standing) for standing in current.submissions.for_plan()]
        now_s = board.now_s()
        count = sharing(entrants, lambda hotkey: board.members.lives(hotkey, now_s))
        terms = board.members.terms(board.spec, current.state, now_s, count)
        read, left_s = partial(self._read, current), seconds_left(current.state, board.now_s(), current.policy)
        judging = in_thread(lambda: judge(board.spec, base, run.merged, entrants, board.counts(), read, terms))
        # Deltas that memory did not keep are read again: as long as what is judged can still be planned.
        current.judgement = await _within(max(LEAST_LOOK_S, left_s), judging)

    async def _last_looks(self, current: Round, submissions: Sequence[Submission]) -> None:
        """Side by side, as many as the intake reads at once. Raises what one of them raised, when all are done.

        Once the time for reading is over, what the storage does not give is left out instead: the others must not wait
        for ever, and its sender loses nothing, since the plan defers what is not there.
        """
        looks = (self._look(current, submission) for submission in submissions)
        for submission, came in zip(submissions, await asyncio.gather(*looks, return_exceptions=True), strict=True):
            if isinstance(came, Retryable) and self._reading_over(current):
                _say_left_out(submission, came)
                current.submissions.settle(submission, LEFT_OUT, self._board.now_s(), last_call=True)
            elif isinstance(came, BaseException):
                raise came

    async def _look(self, current: Round, submission: Submission) -> None:
        """One look, as long as there is time for reading: an object may come for ever, a byte at a time."""
        limit_s = max(LEAST_LOOK_S, self._reading_left_s(current))
        await _within(limit_s, self._intake.last_look(current, submission))

    def _reading_over(self, current: Round) -> bool:
        return self._reading_left_s(current) <= 0

    def _reading_left_s(self, current: Round) -> float:
        return reading_left_s(current.state, self._board.now_s(), current.policy)

    async def awaited(self, current: Round) -> str:
        """What the merge waits for, where miners reduce; empty when it can begin."""
        return await self._butterfly.awaited(current) if self._butterfly else ""

    async def stop(self) -> None:
        """Leave what goes on beside the driver's looks."""
        if self._butterfly is not None:
            await self._butterfly.stop()

    async def reduce(self, current: Round) -> None:
        """Merge the newest plan and store the result, or note what is wrong with it."""
        run = self._board.journal.state
        try:
            coldkeys = current.judgement.coldkeys if current.judgement else {}
            trial_s = TRIAL_SHARE * current.policy.finish_deadline_s
            handed = self._butterfly.close(current) if self._butterfly else None
            means = None if handed is None else await self._means(current, handed)
            found = await in_thread(lambda: self._merge(run, coldkeys, trial_s, means))
            if handed is not None and isinstance(found, Spoilt):
                # An owner's lie does the same harm as a sender's delta: nobody is suspected before it is ruled out.
                said = logger.bind(event="means_dropped", round=int(current.state.round))
                said.warning("{}: computing all means of miners again", found.why)
                everything = replace(handed, drawn=frozenset(handed.deal.duties), why_drawn=found.why)
                computed = await self._means(current, everything)
                found = await in_thread(lambda: self._merge(run, coldkeys, trial_s, computed))
        except Rejected as refusal:
            logger.error("round {} can't be merged: {}", current.state.round, refusal)
            current.give_up(refusal.code, refusal.message)
            return
        if isinstance(found, Trouble):
            self._note_trouble(current, run, found)
        elif isinstance(found, merging.Merged):
            current.merged = found

    async def _means(self, current: Round, handed: Handed) -> Means | None:
        """The means of the plan, with what miners have handed in; None when it is of no use."""
        assert self._butterfly is not None, "nobody has handed in anything to anybody else"
        board = self._board
        try:
            means = await in_thread(lambda: gather(board.spec, board.counts(), handed, board.reader))
        except Rejected as refusal:
            logger.error("what miners reduced can't be put together, merging alone: {}", refusal)
            return None
        self._butterfly.judge(current, means)
        return means

    def keep_head(self, current: Round) -> None:
        """Remember the weights of a revision that this process merged itself."""
        run, merged = self._board.journal.state, current.merged
        if merged is not None and run.head_node.shards == merged.commit.shards:
            self._heads.keep(run.head, merged.memories)

    async def why_not_to(self, run: RunState, revision: Revision) -> str:
        """Why the run can't go back to a revision; empty when everything that its next merge needs is there."""
        try:
            await in_thread(lambda: self._heads.get(run, revision))
        except Rejected as refusal:
            return f"revision {revision} can't be had: {refusal}"
        return ""

    async def tidy(self) -> None:
        """Abort uploads of rounds of which nothing can count any more. What fails now is done after the next round."""
        run = self._board.journal.state
        oldest = min([run.first_round, *(member.round for member in run.deferred)])
        try:
            count = await in_thread(lambda: self._uploads.abort_leftovers(run.run, oldest))
        except (Retryable, Rejected) as fault:
            logger.debug("leftover uploads are left for the next round: {}", fault)
            return
        if count:
            logger.info("{} uploads that were never finished are aborted", count)

    def coldkeys(self, current: Round) -> dict[Hotkey, Coldkey]:
        """Whose hotkeys belong together, of those that take part in a round."""
        known: dict[Hotkey, Coldkey] = {}
        for standing in current.submissions.for_plan():
            if standing.submission is not None:
                known[standing.submission.seat.hotkey] = standing.submission.seat.coldkey
        return known

    def _entrant(self, standing: Standing) -> Entrant:
        members = self._board.members
        _, hotkey, _ = standing.order
        delta = standing.submission.manifest.delta if standing.submission else None
        if delta is None:
            assert standing.deferred is not None
            delta = standing.deferred.delta
        return Entrant(standing, members.seen(hotkey, delta.sha256), members.supported().get(hotkey))

    def _read(self, current: Round, submission: Submission) -> bytes:
        manifest = submission.manifest
        key = delta_key(manifest.run, manifest.round, manifest.shard, manifest.signer, manifest.delta.sha256)
        size = manifest.delta.size_bytes
        try:
            return self._board.reader.fetch(key, max_bytes=size, sha256=manifest.delta.sha256, size_bytes=size)
        except Retryable as fault:
            if not self._reading_over(current):
                raise
            _say_left_out(submission, fault)
            raise Rejected(LEFT_OUT.code, LEFT_OUT.reason) from fault

    def _note_trouble(self, current: Round, run: RunState, trouble: Trouble) -> None:
        plan, judgement = current.opened.plan, current.judgement
        assert plan is not None
        assert judgement is not None
        left = judgement.verdict
        if trouble.suspects:
            base = current.state.base_revision
            current.redo = without(run.spec, base, run.merged, judgement, trouble.suspects)
            left = current.redo.verdict
        logger.warning("attempt {} of round {} does harm: {}", plan.attempt, plan.round, "; ".join(trouble.evidence))
        current.why_harm = trouble.evidence[0]
        current.measured += tuple(f"plan {plan.attempt + 1}: {line}" for line in trouble.evidence)
        current.harm = Harm(plan.attempt, current.measured, tuple(sorted(trouble.suspects)), left)

    # In the worker thread.

    def _merge(
        self, run: RunState, coldkeys: Mapping[Hotkey, Coldkey], trial_s: float, means: Means | None
    ) -> merging.Merged | Trouble | Spoilt:
        board, opened = self._board, run.open_round
        assert opened is not None
        assert opened.plan is not None
        plan, base = opened.plan, self._base(run)
        base_loss = self._scorer.heldout_loss(run.revisions[opened.base_revision].sha256, base)
        try:
            results = merging.merge_plan(run, plan, base, board.reader, means.vectors if means else None)
            new_loss = self._scorer.heldout_loss(merging.hash_of(results), merging.memories_of(results))
            told = merging.guard(base_loss, new_loss)
        except Rejected as refusal:
            if refusal.code == "no_members":
                raise
            told = str(refusal)
        if told and means is not None and means.reduced is not None:
            return Spoilt(told)
        if told:
            until_s = board.now_s() + trial_s
            search = Search(board.spec, coldkeys, base_loss, lambda m: self._loss_alone(base, m), board.now_s, until_s)
            return examine(plan, told, search)
        losses = f"takes the held-out loss from {base_loss:.3f} to {new_loss:.3f}"
        return merging.store_revision(board.store, run, plan, results, losses, means.reduced if means else None)

    def _loss_alone(self, base: Memories, member: PlanMember) -> float:
        board = self._board
        return self._scorer.loss_alone(weights_of(base), member, read_delta(board.reader, board.spec.run, member))

    def _base(self, run: RunState) -> Memories:
        """The weights to merge into. Without them nothing can commit: wait, and say so."""
        assert run.open_round is not None
        try:
            return self._heads.get(run, run.open_round.base_revision)
        except Rejected as refusal:
            raise Retryable(f"the base of the round can't be had: {refusal}") from refusal


async def _within(limit_s: float, work: Awaitable[T]) -> T:
    """The result of ``work``, which reads from the storage; ``Retryable`` if it takes longer."""
    try:
        async with asyncio.timeout(limit_s):
            return await work
    except TimeoutError as slow:
        raise Retryable(f"the storage did not give it within {limit_s:.0f} s") from slow


def _say_left_out(submission: Submission, fault: Retryable) -> None:
    logger.warning("the delta of {} is left out of the plan: {}", submission.manifest.signer, fault)
