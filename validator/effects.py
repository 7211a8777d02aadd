"""The two heavy effects of a round: judging what was delivered, and merging what the plan accepted.

Both work on frozen facts in worker threads; what they found is noted on the round by the event loop. Either may be
repeated at any time: nothing they write can differ, since every object is named by its hash.
"""

from __future__ import annotations

from loguru import logger

from common.blocking import in_thread
from common.errors import Rejected, Retryable
from common.keys import delta_key
from common.runlog.state import RunState
from validator import merging
from validator.board import Board
from validator.gating import Entrant, judge
from validator.heads import Heads, Memories
from validator.intake import Intake
from validator.rounds import Round, terms_of
from validator.scorer import Scorer
from validator.submissions import Submission


class Effects:
    """Judge and reduce, for one process."""

    def __init__(self, board: Board, heads: Heads, intake: Intake, scorer: Scorer) -> None:
        self._board = board
        self._heads = heads
        self._intake = intake
        self._scorer = scorer

    async def judge(self, current: Round) -> None:
        """Close the submissions, look a last time for uploads that nobody announced as complete, run the gates."""
        board = self._board
        current.submissions.closed = True
        for submission in current.submissions.unfinished():
            await self._intake.check(current, submission, last_call=True)
        entrants = [self._entrant(current, submission) for submission in current.submissions.for_plan()]
        count = len({entrant.hotkey for entrant in entrants})
        terms = terms_of(board.spec, board.members, current.state.round, count, board.now_s())
        current.judgement = await in_thread(
            lambda: judge(board.spec, current.state.base_revision, entrants, board.counts(), self._read, terms)
        )

    async def reduce(self, current: Round) -> None:
        """Merge the plan in the log and store the result; a plan that can't be merged is noted as failure."""
        run = self._board.journal.state
        try:
            current.merged = await in_thread(lambda: self._merge(run))
        except Rejected as refusal:
            logger.error("round {} can't be merged: {}", current.state.round, refusal)
            current.failure, current.failure_reason = refusal.code, refusal.message

    def keep_head(self, current: Round) -> None:
        """Remember the weights of a revision that this process merged itself."""
        run, merged = self._board.journal.state, current.merged
        if merged is not None and run.head_node.shards == merged.commit.shards:
            self._heads.keep(run.head, merged.memories)

    def _entrant(self, current: Round, submission: Submission) -> Entrant:
        members, hotkey = self._board.members, submission.manifest.signer
        seen = current.seen(members, hotkey, submission.received_s)
        return Entrant(submission, seen, members.supported().get(hotkey))

    def _read(self, submission: Submission) -> bytes:
        manifest = submission.manifest
        key = delta_key(manifest.run, manifest.round, manifest.shard, manifest.signer, manifest.delta.sha256)
        size = manifest.delta.size_bytes
        return self._board.reader.fetch(key, max_bytes=size, sha256=manifest.delta.sha256, size_bytes=size)

    def _merge(self, run: RunState) -> merging.Merged:
        """In a worker thread."""
        board, opened = self._board, run.open_round
        assert opened is not None
        assert opened.plan is not None
        base = self._base(run)
        results = merging.merge_plan(run, opened.plan, base, board.reader)
        base_loss = self._scorer.heldout_loss(run.revisions[opened.base_revision].sha256, base)
        new_loss = self._scorer.heldout_loss(merging.hash_of(results), merging.memories_of(results))
        merging.guard(base_loss, new_loss)
        return merging.store_revision(board.store, run, opened.plan, results)

    def _base(self, run: RunState) -> Memories:
        """The weights to merge into. Without them nothing can commit: wait, and say so."""
        assert run.open_round is not None
        try:
            return self._heads.get(run, run.open_round.base_revision)
        except Rejected as refusal:
            raise Retryable(f"the base of the round can't be had: {refusal}") from refusal
