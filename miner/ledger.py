"""What a miner owes and is owed: account, submissions that a plan can still name, work put away. On disk, too.

Invariants: the word of a plan enters the account exactly once, whenever the process is killed; a submission is on disk
before its first byte is sent, and goes only when it is settled or when the leader holds later ones whole. The event
loop owns it; only the writing itself happens in a thread, one change at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from loguru import logger

from common.blocking import in_thread
from common.merge.account import Account, rolled_back
from common.runlog.state import Restart
from common.spec import RunSpec
from common.units import Revision, RoundId, Sha256
from miner.adamw import OptimizerState
from miner.delta import Outstanding, Submission
from miner.settle import OwnPlan, Settlement, Standing, settle
from miner.state import Memory, StateFolder
from miner.work import Work

MAX_LIVE = 8
"""Submissions of one base that are kept while none of them is confirmed: rounds that were aborted one after the other
on a dead uplink."""


class Ledger:
    """Memory and outstanding submissions of one miner in one run."""

    def __init__(
        self, spec: RunSpec, folder: StateFolder, count: int, memory: Memory | None, live: Sequence[Outstanding]
    ) -> None:
        self._spec = spec
        self._folder = folder
        self._count = count
        self._memory = memory
        self._live = tuple(sorted(live, key=lambda one: one.order))
        self._confirmed: tuple[RoundId, Sha256] | None = None
        self._writing = asyncio.Lock()

    @classmethod
    def open(cls, spec: RunSpec, folder: StateFolder, count: int) -> Ledger:
        """What the disk holds, or a fresh ledger for vectors of ``count`` values. Blocks."""
        memory, live = folder.load_memory(), []
        for one in folder.load_submissions():
            if memory is not None and _counts(memory, one.sent):
                live.append(one)
            else:
                folder.drop_submission(one.sent)  # settled, rolled back, or made with a residual that is lost
        made = cls(spec, folder, count, memory, live)
        confirmed = folder.load_confirmed()
        made._confirmed = next((one.sent.name for one in live if one.sent.manifest.delta.sha256 == confirmed), None)
        if (work := made.work) is not None:
            logger.info("found {} steps of work on revision {} on disk", work.steps, made.settled)
        return made

    @property
    def count(self) -> int:
        """Length of the vectors."""
        return self._count

    @property
    def settled(self) -> Revision | None:
        """The revision that work and submissions are on; None before the first."""
        return None if self._memory is None else self._memory.settled

    @property
    def account(self) -> Account:
        return Account.empty(self._count) if self._memory is None else self._memory.account

    @property
    def pending(self) -> Submission | None:
        """What the settled revision's plan deferred."""
        return None if self._memory is None else self._memory.pending

    @property
    def live(self) -> tuple[Outstanding, ...]:
        """Submissions that the next plan may name, the oldest first."""
        return self._live

    @property
    def optimizer(self) -> OptimizerState | None:
        """As of the last settlement or orderly stop."""
        return None if self._memory is None else self._memory.optimizer

    @property
    def work(self) -> Work | None:
        """The latest work on the settled revision that the disk holds."""
        found = [one.work for one in self._live]
        if self._memory is not None and self._memory.carried is not None:
            found.append(self._memory.carried)
        return max(found, key=lambda work: work.reach, default=None)

    @property
    def honoured(self) -> int | None:
        """How many of the log's restarts are behind this miner; None before the beginning."""
        return None if self._memory is None else self._memory.honoured

    async def adopt(self, head: Revision, restarts: Sequence[Restart] = ()) -> None:
        """Begin at ``head``: nothing before it concerns this miner, nor the log's ``restarts`` so far."""
        assert self._memory is None, "a ledger begins once"
        zeros = np.zeros(self._count, dtype=np.float32)
        since = _since(restarts, RoundId(0))
        await self._write(Memory(Account(zeros), self._fresh(), head, honoured=len(restarts), since=since))

    async def restart(self, head: Revision, restarts: Sequence[Restart]) -> tuple[bool, str]:
        """Honour the log's restarts that are not behind us: whether they void the work, and what was done, in words.

        One rename on disk, then the clean-up. After a rollback account, submissions and work are void and ``head`` is
        settled; after a cold start only the optimizer is fresh.
        """
        async with self._writing:
            assert self._memory is not None, "a ledger that restarts has begun"
            held, new = self._memory, restarts[self._memory.honoured :]
            voids = any(restart.kind == "rollback" for restart in new)
            fresh = resets_inner(self._spec, new)
            optimizer = self._fresh() if fresh else held.optimizer
            if not voids:
                await self._write(replace(held, optimizer=optimizer, honoured=len(restarts)))
                return False, "a cold start"
            settled = rolled_back(held.account)
            since = _since(new, held.since)
            await self._write(Memory(settled.account, optimizer, head, honoured=len(restarts), since=since))
            await self._keep([])
            return True, settled.reason

    def _fresh(self) -> OptimizerState:
        first, second = (np.zeros(self._count, dtype=np.float32) for _ in range(2))
        return OptimizerState(first, second, 0)

    async def hand_in(self, one: Outstanding) -> bool:
        """Keep a submission until it is settled. False when it is too late: its base is settled, or rolled back."""
        async with self._writing:
            if self._memory is None or not _counts(self._memory, one.sent):
                return False
            await in_thread(lambda: self._folder.save_submission(one))
            live = sorted((*self._live, one), key=lambda each: each.order)
            kept = self._within_limit(live)
            if len(kept) < len(live):
                logger.warning("forgetting {} submissions that were never confirmed", len(live) - len(kept))
            await self._keep(kept)
            return True

    async def confirm(self, sent: Submission) -> None:
        """The leader has all of ``sent``: no plan names one any more that is older than the one confirmed before.

        That one itself may still be named, by a plan that was being made when ``sent`` arrived.
        """
        async with self._writing:
            own = next((one for one in self._live if one.sent.name == sent.name), None)
            before = next((one for one in self._live if one.sent.name == self._confirmed), None)
            # What is pending, or settled meanwhile, replaces nothing; nor does what is older than the confirmed one.
            if own is None or (before is not None and own.order < before.order):
                return
            self._confirmed = sent.name
            await in_thread(lambda: self._folder.save_confirmed(sent.manifest.delta.sha256))
            if before is not None and before.sent.name != sent.name:
                # Of one round a leader takes the one of most steps for the newest, though the trainer went back since.
                await self._keep([one for one in self._live if one.order >= before.order or _rivals(one, before)])

    def outcome(self, plans: Sequence[OwnPlan]) -> Settlement:
        """What ``plans`` make of what is held. Pure; for a thread."""
        return settle(self._spec, Standing(self.account, self._live, self.pending), plans)

    async def settle(self, head: Revision, outcome: Settlement, optimizer: OptimizerState | None) -> None:
        """Take over an outcome of ``outcome`` up to revision ``head``: one rename on disk, then the clean-up.

        What was submitted and not settled stays as carried work. ``optimizer`` is the trainer's present state.
        """
        async with self._writing:
            standing = outcome.standing
            carried = await in_thread(lambda: self._left(outcome))
            state = optimizer or self.optimizer
            assert state is not None, "a ledger that settles has begun"
            assert self._memory is not None
            kept = (self._memory.honoured, self._memory.since)
            await self._write(Memory(standing.account, state, head, standing.pending, carried, *kept))
            await self._keep([])

    async def put_away(self, work: Work | None, optimizer: OptimizerState) -> None:
        """Keep work of the settled revision that no submission holds, and the optimizer's state, for the next start."""
        async with self._writing:
            assert self._memory is not None, "work has a base"
            held = self._memory
            known = self.work
            later = work if work is not None and (known is None or work.reach > known.reach) else held.carried
            await self._write(replace(held, optimizer=optimizer, carried=later))

    def _within_limit(self, live: Sequence[Outstanding]) -> list[Outstanding]:
        """The newest, and those up to the confirmed one: aborted rounds leave that to the plan of a later one."""
        names = [one.sent.name for one in live]
        confirmed = names.index(self._confirmed) + 1 if self._confirmed in names else 0
        return [*live[:confirmed], *live[confirmed:][-MAX_LIVE:]]

    def _left(self, outcome: Settlement) -> Work | None:
        """Of the latest work on disk what ``outcome`` has not settled."""
        work, mark = self.work, outcome.mark
        left = None if work is None else work.without(mark.work if mark else None)
        return left if left is not None and left.steps else None

    async def _write(self, memory: Memory) -> None:
        await in_thread(lambda: self._folder.save_memory(memory))
        self._memory = memory

    async def _keep(self, live: Sequence[Outstanding]) -> None:
        """Forget all submissions but ``live``."""
        kept = {one.sent.name for one in live}
        gone = [one.sent for one in self._live if one.sent.name not in kept]
        self._live = tuple(live)
        for sent in gone:
            await in_thread(partial(self._folder.drop_submission, sent))


def resets_inner(spec: RunSpec, restarts: Sequence[Restart]) -> bool:
    """Whether these restarts clear the optimizer's state."""
    return any(restart.kind == "cold" or spec.restart.reset_inner for restart in restarts)


def _counts(memory: Memory, sent: Submission) -> bool:
    """Whether a plan can still name it."""
    return sent.manifest.base_revision == memory.settled and sent.round >= memory.since


def _since(restarts: Sequence[Restart], before: RoundId) -> RoundId:
    return max((restart.round for restart in restarts if restart.kind == "rollback"), default=before)


def _rivals(one: Outstanding, other: Outstanding) -> bool:
    """Whether a leader that holds both may take ``one`` for the newer one."""
    mine, its = one.sent.manifest, other.sent.manifest
    return mine.round == its.round and mine.steps >= its.steps
