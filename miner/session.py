"""A miner's life in one run: the moves that ``policy.decide`` asks for, one after the other.

Tasks share one event loop: the heart, the reader of the log (both in ``agent.py``), this loop of moves, and the jobs
that it starts; training has a thread of its own, and so has every blocking call. None of them ends the process when the
validator, the storage or the chain is away: each waits with backoff and says what for, in the log and in the
heartbeat's note. State changes only in the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import numpy as np
from loguru import logger

from common.blocking import in_thread
from common.data.dataset import Dataset
from common.data.fetch import ensure_dataset
from common.data.stream import SampleStream
from common.errors import Rejected, RemoteError
from common.merge.account import Account, norm
from common.runlog.restarts import rewarming
from common.units import Revision, RoundId
from common.wire import HeartbeatReply
from miner.context import Context
from miner.deadlines import Deadlines
from miner.delta import Outstanding, build
from miner.desk import Desk
from miner.follow import LogView
from miner.jobs import Job, Jobs
from miner.ledger import Ledger, resets_inner
from miner.meter import UploadMeter
from miner.patience import Patience
from miner.policy import Made, Move, decide
from miner.revisions import Held, bring_to_head
from miner.settle import Settlement
from miner.survey import survey
from miner.uplink import Uplink
from miner.work import Base, Mark, RoundWork, Stream

HOPELESS = frozenset({"non_finite", "absurd_norm"})
"""Refusals of one's own work after which training on from it makes no sense."""


class Session:
    """Everything that changes while a miner works in a run. The event loop owns it."""

    def __init__(
        self, context: Context, uplink: Uplink, meter: UploadMeter, ledger: Ledger, view: LogView, times: Deadlines
    ) -> None:
        self.context = context
        self.meter = meter
        self.ledger = ledger
        self.view = view
        self.held: Held | None = None
        self.base: Revision | None = None
        """The revision in the training thread."""
        self.joined = False
        """Whether this process has trained for the run: then it waits at nobody's word, also after a rollback."""
        self.waiting_for = "starting"
        """What the miner does or waits for, in plain words."""
        self.trouble = ""
        """Why the last submission was refused or not made, or what can't be fetched."""
        self.still = ""
        """What makes no progress, by the watchdog's last look."""
        self.downloads: dict[Job, Patience] = {}
        """How the newest of each kind stands with the storage."""
        self.gave_up: RoundId | None = None
        """The round whose final submission could not be made."""
        self.changed = asyncio.Event()
        """Set whenever there is something new to decide on."""
        self.desk = Desk(uplink, ledger)
        self.jobs = Jobs(self.changed.set)
        self.times = times
        self.dataset: Dataset | None = None
        self.stream: RoundId | None = None
        """The round whose samples are trained on."""
        self.reply: HeartbeatReply | None = None
        self.roundless = 0
        """How many of the newest answers, one after the other, knew of no round."""
        self.heard_s = 0.0
        """When it came, on the monotonic clock."""
        self.making: Made | None = None
        """What is being encoded."""
        self.marked_s = 0.0
        """When the last submission, or training, was begun."""
        self.encode_s = 0.0
        """What it took to make the last one."""
        self.training = False
        self.left = False
        """Whether nothing will be sent any more."""
        self._draining = self._hurry = False
        self._moves: dict[Move, Callable[[], Awaitable[None]]] = {
            Move.FETCH: self._fetch,
            Move.SYNC: self._sync,
            Move.RESTART: self._restart,
            Move.SETTLE: self._settle,
            Move.BEGIN: self._begin,
            Move.RESTREAM: self._restream,
            Move.DRIP: lambda: self._submit("drip"),
            Move.FINAL: lambda: self._submit("final"),
            Move.DELIVER: self._deliver,
            Move.RECALL: lambda: self.jobs.cancel(Job.DELIVER),
            Move.TRAIN: lambda: self._stay(True),
            Move.REST: lambda: self._stay(False),
        }

    async def run(self) -> None:
        """Work until it was told to drain and has done so. Raises ``Fatal`` when the training thread has died, and what
        else can't be waited for."""
        try:
            while await self._turn():
                pass
            await self._put_away()
        finally:
            await self.jobs.end()

    async def _turn(self) -> bool:
        """One move; False when the time has come to end."""
        self.changed.clear()
        self.jobs.collect()
        move, reason = decide(survey(self), self.times, self.context.spec.round.overlap)
        self._say(move, reason)
        if move is Move.LEAVE:
            self.left = True
            return False
        await self._moves[move]()
        return True

    def drain(self) -> None:
        """Hand in what there is, store the rest, and return from ``run``."""
        self._draining = True
        self.changed.set()

    def hurry(self) -> None:
        """Wait for no delivery any more."""
        self._draining = self._hurry = True
        self.changed.set()

    def heard(self, reply: HeartbeatReply) -> None:
        """Take in the leader's answer."""
        before, self.reply = self.reply, reply
        self.heard_s = self.context.clock.monotonic_s()
        self.roundless = 0 if reply.round else self.roundless + 1
        if before is not None and before.instance != reply.instance:
            logger.info("another leading process answers; announcing again what is not settled")
            self.desk.reopen()
        self.changed.set()

    def read(self, view: LogView) -> None:
        """Take over a newer view of the log."""
        if view.state.next_seq != self.view.state.next_seq:
            self.changed.set()
        self.view = view

    @property
    def draining(self) -> bool:
        """Whether the process is about to end."""
        return self._draining

    @property
    def hurried(self) -> bool:
        """Whether it must not wait for any delivery."""
        return self._hurry

    def _say(self, move: Move, reason: str) -> None:
        if reason != self.waiting_for:
            logger.bind(event="move", move=move.value, head=self.view.state.head).info("{}: {}", move.value, reason)
        self.waiting_for = reason

    # The moves.

    async def _stay(self, train: bool) -> None:
        await self._let_train(train)
        try:
            async with asyncio.timeout(self.times.look_s):
                await self.changed.wait()
        except TimeoutError:
            return

    async def _fetch(self) -> None:
        async def fetch() -> None:
            patience, dataset = self._download(Job.FETCH, "fetching the dataset"), self.context.spec.data.dataset
            self.dataset = await patience.insist(
                lambda: in_thread(lambda: ensure_dataset(self.context.reader, dataset, self.context.cache))
            )

        self.jobs.start(Job.FETCH, fetch())

    async def _sync(self) -> None:
        self.jobs.start(Job.SYNC, self._bring_to_head())

    async def _bring_to_head(self) -> None:
        """Fetch, decode, step and prove beside the training."""
        patience = self._download(Job.SYNC, "fetching the revision")

        async def once() -> Held:
            state, held = self.view.state, self.held
            try:
                return await in_thread(lambda: bring_to_head(self.context.reader, state, held))
            except RemoteError as error:
                self.trouble = str(error)
                raise

        held = await patience.insist(once)
        if not self._leads_to_head(held.revision):
            return  # the run was rolled back meanwhile, behind what was fetched
        self.held, self.trouble = held, ""
        logger.bind(event="revision", revision=held.revision).info(
            "holds revision {}, weights {} proved", held.revision, held.sha256[:12]
        )

    async def _restart(self) -> None:
        """The training thread first, then the disk: a kill in between finds the restart undone, and does it again."""
        state, spec = self.view.state, self.context.spec
        new = state.restarts[self.ledger.honoured or 0 :]
        fresh = resets_inner(spec, new)
        if not any(restart.kind == "rollback" for restart in new):
            await self.context.worker.call(lambda w: w.trainer.restore_optimizer(None))
            await self.ledger.restart(state.head, state.restarts)
            logger.bind(event="restart").info("a cold start: the optimizer begins anew, the learning rate rises again")
            return
        await self.jobs.cancel(Job.DELIVER)
        await self.jobs.cancel(Job.SYNC)  # what is on its way may lie before the head that is settled below
        await self._let_train(False)
        if self.base is not None:
            await self.context.worker.call(lambda w: w.drop("the run was rolled back", fresh))
        elif fresh:
            await self.context.worker.call(lambda w: w.trainer.restore_optimizer(None))
        self.base = self.stream = self.gave_up = None
        if self.held is not None and self.held.revision != state.head:
            self.held = None
        _, told = await self.ledger.restart(state.head, state.restarts)
        logger.bind(event="restart").info("the run goes on from revision {}: {}", state.head, told)

    async def _settle(self) -> None:
        """The account first in memory, then the training thread, then the disk: a kill in between settles anew."""
        held, settled = self._held(), self.ledger.settled
        if settled is None:
            if not self._leads_to_head(held.revision):
                self.held = None  # rolled back since it came: nobody begins behind a rollback
                return
            await self.ledger.adopt(held.revision, self.view.state.restarts)
            return
        plans = self.view.plans(settled, held.revision)
        outcome = await in_thread(lambda: self.ledger.outcome(plans))
        mark, base, optimizer = outcome.mark, _base(held), None
        if self.base is not None:
            work = mark.work if mark else None
            optimizer = await self.context.worker.call(lambda w: w.rebase(base, work))
            self.base = held.revision
        await self.ledger.settle(held.revision, outcome, optimizer)
        self.gave_up = None
        _tell(outcome, held.revision)

    async def _begin(self) -> None:
        opened, held, work = self.view.state.open_round, self._held(), self.ledger.work
        assert opened is not None, "there is a round to begin in"
        base, stream = _base(held), self._make_stream(opened.round, held.revision)
        await self.context.worker.call(lambda w: w.begin(base, stream, work))
        self.base, self.stream, self.joined = held.revision, opened.round, True
        self.marked_s = self.context.clock.monotonic_s()

    async def _restream(self) -> None:
        opened = self.view.state.open_round
        assert opened is not None, "there is a round to take samples of"
        stream = self._make_stream(opened.round, opened.base_revision)
        await self.context.worker.call(lambda w: w.restream(stream))
        self.stream = opened.round

    async def _submit(self, kind: Made) -> None:
        """Start making a submission; whoever does not train on after it ends the current step first."""
        opened = self.view.state.open_round
        assert opened is not None, "there is a round to hand in for"
        if kind == "final" and (self._draining or not self.context.spec.round.overlap):
            await self._let_train(False)
            if self.view.state.open_round != opened:
                return  # it was frozen or is over, and maybe the run was rolled back: decide anew
        self.making, self.marked_s = kind, self.context.clock.monotonic_s()
        self.jobs.start(Job.MAKE, self._make(opened.round, kind))

    async def _make(self, round_id: RoundId, kind: Made) -> None:
        try:
            mark = await self.context.worker.call(RoundWork.mark)
            account = self.ledger.account
            if mark.base.revision != self.ledger.settled:
                return  # a revision came in between: the next mark is on it
            made = await self._build(account, mark, round_id, kind)
            if made is not None and await self.ledger.hand_in(made):
                self.encode_s = self.context.clock.monotonic_s() - self.marked_s
        finally:
            self.making = None

    async def _build(self, account: Account, mark: Mark, round_id: RoundId, kind: Made) -> Outstanding | None:
        """The submission; None when the gates would refuse it."""
        spec, signer = self.context.spec, self.context.signer
        try:
            return await in_thread(lambda: build(spec, account, mark, round_id, kind == "final", signer))
        except Rejected as error:
            self.trouble = f"not sent: {error}"
            self.gave_up = round_id if kind == "final" else self.gave_up
            logger.error("round {}: no {} submission is made: {}", round_id, kind, error)
            if error.code in HOPELESS:
                why = f"the work is no good ({error})"
                await self.context.worker.call(lambda w: w.give_up(why, mark))
            return None

    async def _deliver(self) -> None:
        sent = self.desk.next(self.view)
        if sent is not None:
            self.desk.sending = sent
            self.jobs.start(Job.DELIVER, self.desk.deliver(sent))

    # Helpers.

    def _download(self, job: Job, what: str) -> Patience:
        patience = self.downloads[job] = self.context.patience(what)
        return patience

    def _make_stream(self, round_id: RoundId, revision: Revision) -> Stream:
        assert self.dataset is not None, "the dataset is there before training begins"
        base_sha256 = self.view.state.revisions[revision].sha256
        hotkey, seq_len = self.context.signer.hotkey, self.context.spec.data.seq_len
        batches = SampleStream(self.dataset, base_sha256, round_id, hotkey, seq_len)
        return Stream(round_id, revision, batches, rewarming(self.view.state, round_id, revision))

    def _leads_to_head(self, revision: Revision) -> bool:
        """Whether the run has not gone back behind it."""
        return any(node.revision == revision for node in self.view.state.lineage(self.view.state.head))

    def _held(self) -> Held:
        assert self.held is not None, "a revision is here"
        return self.held

    async def _let_train(self, on: bool) -> None:
        if on != self.training:
            await self.context.worker.train(on)
            self.training = on

    async def _put_away(self) -> None:
        """Store what no submission holds."""
        await self._let_train(False)
        if self.base is None:
            return
        mark, optimizer = await self.context.worker.call(lambda w: (w.mark(), w.trainer.optimizer_state()))
        finite = mark.work.steps > 0 and bool(np.isfinite(mark.work.moved).all())
        await self.ledger.put_away(mark.work if finite else None, optimizer)
        logger.info("stored {} steps on revision {}", mark.work.steps, self.base)


def _base(held: Held) -> Base:
    return Base(held.revision, held.sha256, held.weights)


def _tell(outcome: Settlement, revision: Revision) -> None:
    for alarm in outcome.alarms:
        logger.bind(event="alarm").error("{}", alarm)
    size = norm(outcome.standing.account.residual)
    said = "; ".join(outcome.reasons) or f"revision {revision}: no plan named this miner; all of its work goes on"
    logger.bind(event="settled", revision=revision, residual_norm=size).info("{}; residual norm {:.4g}", said, size)
