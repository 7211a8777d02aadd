"""A validator that does not lead: it merges every committed revision by itself, and compares all hashes bit for bit.

One revision after the other, in the order of their numbers, also those that were rolled back; what is right stays in
memory, so that a takeover merges at once, and is scored, so that the weights on chain are this validator's own opinion.
A revision that was merged wrongly is said loudly and not scored, and nobody here leads on from it: its owner takes the
lead away (`brigade run leaders`) and rolls back. One that holds a mean on which all its miners lied stands, unless it
does more harm than a leader's guard lets pass, as measured here; the liars are convicted, and get nothing for the
round.
What the bucket does not hold any more convicts nobody (``unproved.py``): it is looked at again and again, and nobody
here leads on from it either, as long as it is neither proved nor passed by retention nor rolled back.
Invariants: nothing that was proved is checked twice; what this hotkey led itself needs no check; no more rounds wait
for their score than ``MOST_WAITING``. The event loop owns it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from loguru import logger

from common.blocking import in_thread, leave
from common.convictions import MAX_CODE, MergedWrongly, RejectedFalsely
from common.errors import Rejected, Retryable
from common.runlog.entries import RoundFrozen
from common.runlog.remerge import Compared, Difference, compare
from common.runlog.state import RevisionNode, RunState
from common.units import Hotkey, Revision, RoundId
from validator.audits.convictions import Accused, Convictions
from validator.audits.plans import Plans
from validator.audits.rejections import look_again
from validator.audits.unproved import Unproved
from validator.board import Board
from validator.heads import Heads
from validator.lies import Lies
from validator.merging import MOST_RISE_NATS
from validator.rounds import MOST_MADE_UP, finished_as_committed
from validator.scorer import Scorer

MOST_WAITING = 8
"""Checked rounds that wait for their score; more of them wait in the log."""
TRIES = 3
"""Looks at a revision that can't be merged from what the bucket holds, before it is unproved and the next one due."""


def told_wrong(leader: Hotkey, revision: Revision, differences: Sequence[Difference]) -> str:
    """A revision whose hashes are not those of its own plan, in one sentence, with the first difference."""
    found = differences[0]
    return (
        f"{leader} merged revision {revision} wrongly: shard {found.shard} has "
        f"{found.what.replace('_', ' ')} {found.theirs[:16]}…, its own plan gives {found.ours[:16]}…; "
        f"{len(differences)} hashes differ"
    )


class Following:
    """Checks commits for one process, one at a time beside everything else."""

    def __init__(
        self, board: Board, heads: Heads, scorer: Scorer, plans: Plans, convictions: Convictions, lies: Lies
    ) -> None:
        self._board = board
        self._plans = plans
        self._convictions = convictions
        self._lies = lies
        self._heads = heads
        self._scorer = scorer
        self._next: Revision | None = None
        self._tries = 0
        self._unproved = Unproved()
        self._task: asyncio.Task[None] | None = None

    async def look(self, wait_s: float) -> bool:
        """Go on with the check that is due; wait so long for it. Whether another one is due now."""
        if self._task is not None and self._task.done():
            task, self._task = self._task, None
            task.result()
        if self._task is None:
            node = self._due()
            if node is None:
                return False
            self._task = asyncio.create_task(self._turn(node), name="following")
        done, _ = await asyncio.wait({self._task}, timeout=wait_s)
        return bool(done)

    async def stop(self) -> None:
        """Leave a check under way."""
        await leave(self._task)

    def refusal(self) -> str:
        """Why nobody here may lead on from the head; empty when nothing is known against it."""
        wrong, run = self._wrong(), self._board.journal.state
        lineage = [node.revision for node in run.lineage(run.head)]
        found = next((wrong[revision] for revision in lineage if revision in wrong), "")
        if found:
            return f"{found}: not led on from here until the owner has rolled the run back to before it"
        doubt = self._unproved.of(lineage)
        if doubt:
            return f"{doubt}: not led on from here until it is there again, or the owner has rolled the run back"
        return ""

    def is_wrong(self, revision: Revision) -> bool:
        """Whether a revision was found to be merged wrongly."""
        return revision in self._wrong()

    def convicted(self) -> set[Hotkey]:
        """Who was found to have done wrong."""
        return {conviction.accused for conviction in self._convictions.everything()}

    def _wrong(self) -> dict[Revision, str]:
        """What was found of the revisions that the log has: an earlier process may have found it."""
        run, found = self._board.journal.state, {}
        for conviction in self._convictions.everything():
            merged, lied = conviction.merged_wrongly, conviction.reduced_wrongly
            node = None if merged is None else run.revisions.get(merged.revision)
            if node is not None and node.seq == conviction.seq:
                found[node.revision] = conviction.told
            if lied is not None and lied.revision is not None and lied.rise > MOST_RISE_NATS:
                node = run.revisions.get(lied.revision)
                if node is not None and node.plan_seq == conviction.seq:
                    found[node.revision] = conviction.told
        return found

    def lies_of(self, round_id: RoundId) -> Mapping[Hotkey, str]:
        """Whose means of a round are known to be wrong, and how."""
        return self._lies.of(round_id)

    def progress(self) -> str:
        """How far the checks are."""
        head = self._board.journal.state.head
        if self._next is None or self._next > head:
            return f"revision {head} is checked" if head not in self._unproved else f"revision {head} is unproved"
        return f"checking revision {self._next} of {head}"

    def _due(self) -> RevisionNode | None:
        """The next revision that somebody else has led to, if there is room for its score."""
        run = self._board.journal.state
        if self._next is None:
            self._next = _first(run, self._board.standing.reported_round)
        if 0 < self._next <= run.floor:
            logger.warning("revisions {} to {} are not checked: deleted by retention", self._next, run.floor)
            self._next = Revision(run.floor + 1)
        while (node := run.revisions.get(self._next)) is not None and run.led_at(node.seq) == self._own:
            self._next = Revision(self._next + 1)
        if node is not None:
            return node if self._scorer.backlog < MOST_WAITING else None
        for revision in self._unproved.forget_up_to(run.floor):
            logger.warning("revision {} stays unproved: passed by retention", revision)
        again = self._unproved.due(self._board.now_s())
        return None if again is None else run.revisions[again]

    @property
    def _own(self) -> Hotkey:
        return self._board.signer.hotkey

    async def _turn(self, node: RevisionNode) -> None:
        run, board = self._board.journal.state, self._board
        try:
            compared = await in_thread(lambda: self._merge(run, node))
            differences = tuple(found for one in compared for found in one.differences)
            if differences:
                logger.debug("revision {}: {}", node.revision, "; ".join(one.unproved for one in compared))
                await self._convict(run, node, differences)
            await self._convict_miners(run, node, compared)
            await self._look_at_rejections(run, node)
        except Retryable as fault:
            logger.debug("revision {} is not checked yet: {}", node.revision, fault)
            if node.revision in self._unproved:
                self._unproved.put_off(node.revision, board.now_s())
            return
        except Rejected as refusal:
            self._pass_by(node, refusal)
            return
        if node.revision in self._unproved:
            self._unproved.settle(node.revision)
            told = "wrong" if differences else "proved: every hash is that of its plan"
            logger.bind(event="proved", revision=int(node.revision)).info(
                "revision {} was unproved and is {}", node.revision, told
            )
            return  # later rounds have their reports, so it is scored no more
        if not differences:
            self._heads.keep(node.revision, tuple(one.memory for one in compared))
            ended = await in_thread(lambda: finished_as_committed(run, board.reader, node))
            if ended is not None:
                self._scorer.add(replace(ended, lies=self._lies.of(ended.round)))
            logger.bind(event="checked", revision=int(node.revision)).info(
                "revision {} checked: every hash is that of its plan", node.revision
            )
        self._go_on(node)

    def _merge(self, run: RunState, node: RevisionNode) -> tuple[Compared, ...]:
        """In a worker thread."""
        assert node.parent is not None, "revision 0 is not checked"
        return tuple(compare(self._board.reader, run, node, base) for base in self._heads.get(run, node.parent))

    async def _convict(self, run: RunState, node: RevisionNode, differences: tuple[Difference, ...]) -> None:
        """Name who merged it; it is not scored."""
        accused = await self._accused(run, node, node.seq)
        told = told_wrong(accused.leader, node.revision, differences)
        self._convictions.note(accused, told, MergedWrongly(node.revision, differences))

    async def _convict_miners(self, run: RunState, node: RevisionNode, compared: Sequence[Compared]) -> None:
        """Name whose means are in it that are none, and measure what harm they do."""
        wrong = [found for one in compared for found in one.wrong_means]
        if not wrong:
            return
        assert node.parent is not None, "revision 0 is not checked"
        assert node.plan_seq is not None, "revision 0 is not checked"
        base, parent = self._heads.get, run.revisions[node.parent]
        rise = await in_thread(
            lambda: (
                self._scorer.heldout_loss(node.sha256, tuple(one.memory for one in compared))
                - self._scorer.heldout_loss(parent.sha256, base(run, parent.revision))
            )
        )
        plan = await self._accused(run, node, node.plan_seq)
        for found in wrong:
            self._lies.note(plan, found, node.revision, rise)

    async def _accused(self, run: RunState, node: RevisionNode, seq: int) -> Accused:
        """A slot of a revision's round: the plan's, or the commit's."""
        leader, sha256 = run.led_at(seq), await self._board.journal.slot_sha256(seq)
        assert leader is not None, "whoever commits leads"
        assert node.round is not None, "revision 0 is not checked"
        assert sha256 is not None, "the log has read this slot"
        return Accused(leader, node.round, seq, sha256)

    async def _look_at_rejections(self, run: RunState, node: RevisionNode) -> None:
        """Of the round's first plan, which decided them: whoever made it again had to leave them rejected."""
        entry = None if node.round is None else self._plans.find(node.round)
        if entry is None or entry.signer == self._own:
            return
        assert isinstance(entry.data, RoundFrozen)
        for member in entry.data.members:
            if member.decision != "rejected":
                continue
            again = await in_thread(partial(look_again, self._board.reader, run.spec, member))
            level = "WARNING" if again.finding == "not_known" else "DEBUG"
            logger.log(
                level, "{} was rejected for {}: {}, {}", member.hotkey, member.code[:MAX_CODE], again.finding, again.why
            )
            if again.finding == "false":
                code = member.code[:MAX_CODE]
                told = f"{entry.signer} rejected the delta of {member.hotkey} in round {node.round} for {code}"
                fault = RejectedFalsely(member.shard, member.hotkey, member.round, member.delta.sha256, code)
                accused = Accused(entry.signer, entry.data.round, entry.seq, entry.slot_sha256)
                self._convictions.note(accused, f"{told}, which is false: {again.why}", fault)

    def _pass_by(self, node: RevisionNode, refusal: Rejected) -> None:
        """Looked for in vain: a few times at once, then now and again, beside what is committed next."""
        if node.revision in self._unproved:
            self._unproved.add(node.revision, str(refusal), self._board.now_s())
            return
        self._tries += 1
        if self._tries >= TRIES:
            logger.warning("revision {} can't be checked, nor scored: {}", node.revision, refusal)
            self._unproved.add(node.revision, str(refusal), self._board.now_s())
            self._go_on(node)

    def _go_on(self, node: RevisionNode) -> None:
        self._tries = 0
        self._next = Revision(node.revision + 1)


def _first(run: RunState, reported: int | None) -> Revision:
    """After the newest reported round; without a report the newest few of the head's lineage."""
    path = run.lineage(run.head)[1:]
    if reported is None:
        recent = path[-MOST_MADE_UP:]
        return recent[0].revision if recent else Revision(run.head + 1)
    later = [node.revision for node in run.revisions.values() if node.round is not None and node.round > reported]
    return min(later, default=Revision(max(run.revisions) + 1))
