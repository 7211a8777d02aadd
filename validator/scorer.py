"""Scoring finished rounds, one after the other, beside the round that trains meanwhile.

Everything comes from log and bucket, so a restarted validator makes up for the report of the last round. Invariants:
a report is in the bucket before its scores count for anything; a storage outage delays a report, it never loses one;
the growth that a report holds is taken off the books only after the report was stored; a report that was signed is put
until it lies there, and no second one is made meanwhile.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Iterable
from dataclasses import dataclass

from loguru import logger

from common.blocking import in_thread
from common.errors import Rejected, Retryable, SetupError
from common.healthreport import HealthReport
from common.keys import manifest_key
from common.records import MAX_MANIFEST_BYTES, Manifest, decode_submission
from common.reports import Report
from common.runlog.entries import PlanMember, revision_hash
from common.runlog.remerge import read_delta, rebuild
from common.runlog.rules import counted_tokens
from common.runlog.state import RunState
from common.store.retry import RetryPolicy
from common.units import Hotkey, Revision, Sha256, ShardId
from validator import checkup
from validator.board import Board, asked_wait_s
from validator.heads import Heads, Memories
from validator.ledger import Account
from validator.membership import Seat
from validator.rounds import Finished
from validator.scoring import reports
from validator.scoring.evaluate import Evaluator, Place, Weights, place_of, read_trials
from validator.scoring.policy import Drops, Work, forgettable, score_round
from validator.scoring.reports import Books, Outcome

KEPT_LOSSES = 8


@dataclass(frozen=True)
class _Task:
    """What one scoring works on: facts that the event loop took down before the thread began."""

    finished: Finished
    books: dict[Hotkey, Books]
    seats: tuple[Seat, ...]
    """Of members that should appear though they sent nothing."""
    health: HealthReport | None
    """What this process knows of their rates, if it leads."""


@dataclass(frozen=True)
class _Signed:
    """A report that only has to be put."""

    report: Report
    first_loss: float
    """Held-out loss at revision 0."""
    books: dict[Hotkey, Books]
    key: str
    body: bytes


class Scorer:
    """The queue of finished rounds and the worker that scores them."""

    def __init__(self, board: Board, heads: Heads, evaluator: Evaluator) -> None:
        self._board = board
        self._heads = heads
        self._evaluator = evaluator
        self._queue: asyncio.Queue[Finished] = asyncio.Queue()
        self._losses: dict[Sha256, float] = {}
        self._turn = threading.Lock()
        self._pending: _Signed | None = None

    def add(self, finished: Finished) -> None:
        """Score this round when its turn comes."""
        self._queue.put_nowait(finished)

    @property
    def backlog(self) -> int:
        """Rounds that wait for their turn."""
        return self._queue.qsize()

    def adopt(self) -> None:
        """Go on from the newest report in the bucket, before anybody is heard. Blocking; ``Retryable``."""
        board = self._board
        found = reports.find_reports(board.reports, board.spec.run, board.signer.hotkey)
        report, board.standing.heldout_first = found.newest, found.first_loss
        if report is not None:
            board.standing.report, board.standing.averages = report, reports.averages(report)
            board.standing.heldout_head = report.heldout_loss
            board.members.restore(reports.accounts(report), board.now_s())
            board.members.prove(reports.proven(report))
            board.members.support(reports.supported(report))
            for hotkey, bar in reports.barred(report).items():
                board.members.bars.add(hotkey, bar)
            checkup.adopt(board, [report])

    def heldout_loss(self, sha256: Sha256, memories: Memories) -> float:
        """Loss on the held-out text of the weights with this revision hash; remembered. Blocking."""
        with self._turn:
            if sha256 not in self._losses:
                self._losses[sha256] = self._evaluator.heldout_loss(weights_of(memories))
                while len(self._losses) > KEPT_LOSSES:
                    del self._losses[next(iter(self._losses))]
            return self._losses[sha256]

    def loss_alone(self, base: Weights, member: PlanMember, body: bytes) -> float:
        """Loss on the held-out text of the base with one delta alone. Blocking; the decoder's ``Rejected``."""
        with self._turn:
            return self._evaluator.heldout_alone(base, member, body)

    async def run(self) -> None:
        """Score whatever comes, for ever."""
        while True:
            await self._score_with_patience(await self._queue.get())

    async def drain(self) -> None:
        """Score what is queued now."""
        while not self._queue.empty():
            await self.score(self._queue.get_nowait())

    async def score(self, finished: Finished) -> None:
        """Make and store the report of one round. ``Retryable`` when the store stays away."""
        board = self._board
        if board.standing.reported_round is not None and finished.round <= board.standing.reported_round:
            return
        signed = self._pending
        if signed is None or signed.report.round != finished.round:
            task = self._task(finished)
            signed = self._pending = await in_thread(lambda: self._signed(task))
        key, body, report = signed.key, signed.body, signed.report
        await in_thread(lambda: reports.put_report(board.reports, key, body))
        self._pending = None
        for hotkey, books in signed.books.items():
            board.members.settle(hotkey, books.account)
        board.standing.report = report
        board.standing.averages = reports.averages(report)
        board.members.support(reports.supported(report))
        board.standing.heldout_first, board.standing.heldout_head = signed.first_loss, report.heldout_loss
        logger.bind(event="round_scored", round=int(report.round)).info("round {} scored: {}", report.round, key)

    async def _score_with_patience(self, finished: Finished) -> None:
        policy, failures = RetryPolicy(), 0
        while True:
            try:
                return await self.score(finished)
            except (Retryable, SetupError) as fault:
                failures += 1
                logger.warning("round {} is not scored yet: {}", finished.round, fault)
                await asyncio.sleep(policy.wait_s(failures, asked_wait_s(fault), random.random))
            except Rejected as refusal:
                logger.error("round {} can't be scored: {}", finished.round, refusal)
                return

    def _task(self, finished: Finished) -> _Task:
        board = self._board
        books = {
            member.hotkey: Books(
                member.account.growth(),
                member.account,
                member.beat.tokens_per_s if member.beat else 0.0,
                member.proven_rate or 0.0,
                board.members.bars.of(member.hotkey),
            )
            for member in board.members
            if member.account != Account()
        }
        seats = (board.membership.known(hotkey) for hotkey in sorted(books))
        health = board.health.report() if board.leadership.leading else None
        return _Task(finished, books, tuple(seat for seat in seats if seat is not None), health)

    # In the worker thread.

    def _signed(self, task: _Task) -> _Signed:
        report, first_loss = self._work(task)
        return _Signed(report, first_loss, task.books, *reports.seal_report(report, self._board.signer))

    def _work(self, task: _Task) -> tuple[Report, float]:
        """The report, and the loss at revision 0."""
        board, finished = self._board, task.finished
        node = finished.run.head_node
        base_node = finished.run.revisions[finished.base_revision]
        base = self._heads.get(finished.run, finished.base_revision)
        drops = self._drops(finished, base) if finished.committed else {}
        base_loss = self.heldout_loss(base_node.sha256, base)
        loss = base_loss
        if finished.committed:
            loss = self.heldout_loss(node.sha256, self._heads.get(finished.run, node.revision))
        first_loss = board.standing.heldout_first
        if first_loss is None:
            first_loss = self._first_loss(finished.run)
        works = list(_works(finished, drops, task.seats, board.standing.report))
        scores = score_round(
            works,
            board.standing.averages,
            finished.committed,
            board.spec.scoring.average_rounds,
            reports.evidence(board.standing.report),
            board.spec.gates.max_share,
        )
        largest = max((score.score for score in scores), default=0.0)
        gone = {score.work.hotkey for score in scores if forgettable(score.score, largest)} - task.books.keys()
        kept = [score for score in scores if score.work.decision != "absent" or score.work.hotkey not in gone]
        outcome = Outcome(finished.round, node.revision, finished.committed, base_loss, loss)
        report = reports.make_report(board.spec.run, board.signer.hotkey, outcome, kept, task.books, task.health)
        return report, first_loss

    def _drops(self, finished: Finished, base: Memories) -> dict[Place, Drops]:
        board, run = self._board, finished.run
        assert finished.plan_sha256 is not None
        found = {place_of(member): self._manifest(member) for member in finished.members}
        trials = read_trials(
            finished.members,
            {place: manifest for place, manifest in found.items() if manifest is not None},
            {revision: node.sha256 for revision, node in run.revisions.items()},
            lambda member: read_delta(board.reader, run.run, member),
        )
        return self._evaluator.drops(weights_of(base), finished.plan_sha256, trials)

    def _manifest(self, member: PlanMember) -> Manifest | None:
        if member.decision != "accepted":
            return None
        run = self._board.spec.run
        key = manifest_key(run, member.round, member.shard, member.hotkey, member.delta.sha256)
        try:
            return decode_submission(self._board.reader.fetch(key, max_bytes=MAX_MANIFEST_BYTES), run).manifest
        except Rejected as refusal:
            logger.warning("{} can't be read, so its delta is not tried: {}", key, refusal)
            return None

    def _first_loss(self, run: RunState) -> float:
        node = run.revisions[Revision(0)]
        known = self._losses.get(node.sha256)
        if known is not None:
            return known
        shards = [rebuild(self._board.reader, run, Revision(0), ShardId(s))[0] for s in range(run.spec.num_shards)]
        return self.heldout_loss(revision_hash(node.shards), tuple(shards))


def weights_of(memories: Memories) -> Weights:
    """Just the weights."""
    return {memory.shard: memory.weights for memory in memories}


def _works(
    finished: Finished, drops: dict[Place, Drops], seats: Iterable[Seat], before: Report | None
) -> Iterable[Work]:
    """One for each hotkey: who is in the plan, who is known and sent nothing, and who has an average."""
    by_hotkey: dict[Hotkey, list[PlanMember]] = {}
    for member in finished.members:
        by_hotkey.setdefault(member.hotkey, []).append(member)
    done = set(by_hotkey)
    for members in by_hotkey.values():
        yield _work(finished, members, drops)
    for seat in seats:
        if seat.hotkey not in done:
            done.add(seat.hotkey)
            yield Work(seat.hotkey, seat.uid, seat.registered_block, "absent")
    for old in before.members if before else ():
        if old.hotkey not in done:
            yield Work(old.hotkey, old.uid, old.registered_block, "absent")


def _work(finished: Finished, members: list[PlanMember], drops: dict[Place, Drops]) -> Work:
    """All shards of one miner, and what it sent late, together; with several, an accepted one makes it accepted."""
    accepted = [member for member in members if member.decision == "accepted"]
    told = accepted[0] if accepted else next((m for m in members if m.decision == "rejected"), members[0])
    tried = [found for m in accepted if (found := drops.get(place_of(m))) is not None]
    late = [member for member in accepted if member.base_revision != finished.base_revision]
    spec, base = finished.run.spec, finished.base_revision
    return Work(
        hotkey=told.hotkey,
        uid=told.uid,
        registered_block=told.registered_block,
        decision=told.decision,
        code=told.code,
        reason=told.reason,
        tokens=sum(member.tokens for member in accepted),
        late_tokens=sum(member.tokens for member in late),
        discount=sum(member.tokens - counted_tokens(spec, base, member) for member in late),
        deltas=max(1, len({member.round for member in accepted})),
        drops=_together(tried) if tried else None,
        lie=finished.lies.get(told.hotkey, ""),
    )


def _together(tried: list[Drops]) -> Drops:
    return Drops(tuple(x for found in tried for x in found.assigned), tuple(x for found in tried for x in found.unseen))
