"""The leader's deletion of what retention no longer keeps: an entry that names it, the wait, then the objects.

At the boundary between two rounds one ``gc`` entry is written, when the policy calls for it and the new floor's
snapshot has just been read and proved. What it names is deleted in the background, a slice after each round, once the
storage's own clock says that the entry is old enough. The next entry waits until all of that is gone, so a new leader
has to look at the newest entry alone: it lists and deletes whatever is left. Invariants: nothing is deleted that the
log, read just before, does not name; nobody deletes whose lease is in doubt. A leader that was stopped in the middle of
a batch and woke deposed may repeat deletes of keys that the log names: that does no harm, for names never come back and
whoever leads now deletes the same. What fails is done after a later round; no round waits for it. When the run has
moved, a bucket has its copies of what had been deleted in the one before; so what a term has seen holds for that term.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice

from loguru import logger

from common import keys
from common.blocking import in_thread, leave
from common.errors import BrigadeError, Rejected
from common.runlog.lease import slot_age_s
from common.runlog.materialise import load_snapshot
from common.runlog.retention import Due, delete_after_s, due, held_back, is_named, next_gc
from common.runlog.spent import Planned, is_spent, planned
from common.runlog.state import RunState
from common.store.port import ObjectInfo
from common.units import Revision, RoundId, ShardId, format_bytes
from validator.board import Board
from validator.logtail import plans_since
from validator.mending import mend

MOST_DELETED = 2048
"""Objects in one slice."""
BATCH = 16
"""Deletes between two looks at lease and log."""


class Collector:
    """Deletes for one process, when it leads. The event loop owns it."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._task: asyncio.Task[None] | None = None
        self._mended_term = 0
        self._seen_term = 0
        """What follows was seen in this term."""
        self._done_seq = 0
        """Slot of the newest entry whose objects are all gone."""
        self._proved: Revision | None = None
        """The floor to come, whose snapshot was read."""
        self._planned: tuple[int, Planned] | None = None
        """Slot of an entry, and the plans that matter to what it named."""

    async def at_boundary(self) -> None:
        """Between two rounds: write the entry that is ready, then go on in the background. Raises as ``append``."""
        if self._task is not None and not self._task.done():
            return
        if self._task is not None:
            self._task.result()
        if self._seen_term != self._board.leadership.term:
            self._seen_term, self._done_seq, self._proved = self._board.leadership.term, 0, None
        run = self._board.journal.state
        ready = next_gc(run, self._needed(run)) if self._all_gone(run) else None
        if ready is not None and ready.floor == self._proved:
            await self._board.append(ready, f"the newest {run.spec.retention.revisions} revisions stay whole")
        self._task = asyncio.create_task(self._work(), name="gc")

    async def idle(self) -> None:
        """Until what is under way in the background is done."""
        if self._task is not None:
            await asyncio.wait({self._task})

    async def stop(self) -> None:
        """Leave what is under way."""
        await leave(self._task)

    def _all_gone(self, run: RunState) -> bool:
        found = due(run)
        return found is None or found.seq == self._done_seq

    def _needed(self, run: RunState) -> list[Revision]:
        """Bases of the revisions that this validator has not scored, and what live miners hold."""
        board, reported = self._board, self._board.standing.reported_round
        made = [node for node in run.revisions.values() if node.round is not None]
        unscored = [node for node in made if reported is None or (node.round or 0) > reported]
        bases = [node.parent or Revision(0) for node in unscored]
        beats = (member.beat for member in board.members if board.members.is_live(member, board.now_s()))
        held = [Revision(beat.revision) for beat in beats if beat is not None and beat.revision is not None]
        return [*bases, *held_back(run, held)]

    async def _work(self) -> None:
        run = self._board.journal.state
        try:
            term = self._board.leadership.term
            if self._mended_term != term:
                await in_thread(lambda: mend(self._board.store, self._board.reader, run, self._sure))
                self._mended_term = term  # of the mend's beginning: the lease may be another's by now
            if not self._all_gone(run):
                await self._delete(run)
            elif (ready := next_gc(run, self._needed(run))) is not None and ready.floor != self._proved:
                await in_thread(lambda: self._prove(run, ready.floor))
                self._proved = ready.floor
        except BrigadeError as fault:
            logger.warning("retention waits for the next round: {}", fault)

    def _sure(self) -> bool:
        return self._board.leadership.sure()

    async def _delete(self, run: RunState) -> None:
        """A slice of what the newest entry named and is there still."""
        found = due(run)
        assert found is not None
        if await in_thread(lambda: slot_age_s(self._board.store, run.run, found.seq)) < delete_after_s(run.spec):
            return
        left = await in_thread(lambda: list(islice(self._left(run, found), MOST_DELETED)))
        for start in range(0, len(left), BATCH):
            now = await self._board.journal.catch_up()
            if not (self._board.leadership.check() and self._sure() and due(now) == found):
                logger.warning("no longer sure to lead: what the log named is left to who leads")
                return
            await in_thread(partial(self._remove, left[start : start + BATCH]))
        if left:
            size = format_bytes(sum(info.size_bytes for info in left))
            logger.bind(event="gc", objects=len(left)).info("deleted {} objects ({}) by retention", len(left), size)
        if len(left) < MOST_DELETED:
            self._done_seq, self._planned = found.seq, None

    # In worker threads.

    def _left(self, run: RunState, found: Due) -> Iterator[ObjectInfo]:
        plans = self._plans(run, found)
        prefixes = [keys.round_prefix(run.run, RoundId(number)) for number in found.rounds]
        prefixes += [keys.revision_prefix(run.run, Revision(number)) for number in found.revisions]
        for prefix in prefixes:
            for info in self._board.store.list(prefix):
                parts = keys.parse_key(run.run, info.key)
                if parts is not None and (is_named(run, parts) or is_spent(run, plans, parts)):
                    yield info

    def _plans(self, run: RunState, found: Due) -> Planned:
        """Read once for each entry: no later plan names what lies before it."""
        if self._planned is None or self._planned[0] != found.seq:
            plans = plans_since(self._board.reader, run, RoundId(found.rounds.start))
            self._planned = found.seq, planned(plans)
        return self._planned[1]

    def _remove(self, objects: Sequence[ObjectInfo]) -> None:
        for info in objects:
            self._board.store.delete(info.key)

    def _prove(self, run: RunState, floor: Revision) -> None:
        """Read the snapshot that everything will begin with, and see that every later update is there.

        Raises ``Rejected`` when it is not: then nothing is named for deletion.
        """
        for shard in range(run.spec.num_shards):
            load_snapshot(self._board.reader, run.spec, run.revisions[floor], ShardId(shard))
        for node in (node for node in run.revisions.values() if node.revision > floor):
            for made in node.shards:
                assert made.update is not None, "only revision 0 is made by no update"
                assert node.round is not None, "only revision 0 is made by no round"
                key = keys.update_key(run.run, node.round, made.shard, made.update.sha256)
                if self._board.store.head(key) is None:
                    raise Rejected("object_missing", f"nothing is deleted as long as {key} is missing")
