"""A miner's life in one run: the moves that ``phases.decide`` asks for, one after the other.

Three tasks share one event loop: the heart, the reader of the log (both in ``agent.py``), and this loop of moves;
training has a thread of its own, and so has every blocking call. None of them ends the process when the validator, the
storage or the chain is away: each waits with backoff and says what for, in the log and in the heartbeat's note. State
changes only in the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from loguru import logger

from common.blocking import in_thread
from common.data.dataset import Dataset
from common.data.fetch import ensure_dataset
from common.data.stream import SampleStream
from common.errors import Rejected, RemoteError
from common.units import RoundId
from common.wire import HeartbeatReply, Phase
from miner.context import Context
from miner.delta import Submission, build
from miner.follow import LogView
from miner.ledger import Ledger
from miner.phases import Facts, Move, Order, decide
from miner.revisions import Held, bring_to_head
from miner.uplink import Delivery, Uplink
from miner.work import Assignment, RoundWork


class Session:
    """Everything that changes while a miner works in a run. The event loop owns it."""

    def __init__(self, context: Context, uplink: Uplink, ledger: Ledger, view: LogView) -> None:
        self.context = context
        self.ledger = ledger
        self.view = view
        self.held: Held | None = None
        self.begun: RoundId | None = None
        """The round in the training thread."""
        self.phase = Phase.STARTING
        self.waiting_for = "starting"
        """What the miner does or waits for, in plain words."""
        self.trouble = ""
        """Why the last submission was refused or not made."""
        self.gave_up = False
        self.changed = asyncio.Event()
        """Set whenever there is something new to decide on."""
        self._uplink = uplink
        self._dataset: Dataset | None = None
        self._reply: HeartbeatReply | None = None
        self._done = False
        self._draining = False
        self._training = False
        self._delivery: asyncio.Task[Delivery] | None = None
        self._syncing = context.patience("fetching the revision")
        self._moves: dict[Move, Callable[[], Awaitable[None]]] = {
            Move.SETTLE: self._settle,
            Move.SYNC: self._sync,
            Move.BEGIN: self._begin,
            Move.TRAIN: self._train,
            Move.SUBMIT: self._submit,
            Move.DELIVER: self._deliver,
            Move.WAIT: self._wait,
        }

    async def run(self) -> None:
        """Work until ``drain`` was called. Raises ``Fatal`` when the training thread has died, and what else can't be
        waited for."""
        try:
            self._dataset = await self._fetch_dataset()
            while await self._turn():
                pass
            await self._put_away()
        finally:
            self._drop_delivery()

    async def _turn(self) -> bool:
        """One move; False when the time has come to end."""
        self.changed.clear()
        self._take_delivery()
        facts = self.facts()
        move, reason = decide(facts)
        if facts.draining and move is Move.WAIT:
            return False
        self._say(move, reason)
        await self._moves[move]()
        return True

    def drain(self) -> None:
        """End after the current step: store what there is, and return from ``run``."""
        self._draining = True
        self.changed.set()

    def heard(self, reply: HeartbeatReply) -> None:
        """Take in the leader's answer."""
        before, self._reply = self._reply, reply
        if before is not None and before.instance != reply.instance and self.ledger.pending is not None:
            logger.info("another leading process answers; announcing the delta again")
            self._done = False
            self._drop_delivery()
        self.changed.set()

    def read(self, view: LogView) -> None:
        """Take over a newer view of the log."""
        if view.state.next_seq != self.view.state.next_seq:
            self.changed.set()
        self.view = view

    def facts(self) -> Facts:
        """What the next move rests on."""
        state, pending, carried = self.view.state, self.ledger.pending, self.ledger.carried
        open_round = state.open_round
        return Facts(
            head=state.head,
            open_round=open_round.round if open_round else None,
            frozen=open_round is not None and open_round.plan is not None,
            held=self.held.revision if self.held else None,
            begun=self.begun,
            carried=carried.round if carried else None,
            pending=pending.round if pending else None,
            done=self._done,
            gave_up=self.gave_up,
            worked=self.context.worker.progress().round_steps > 0,
            order=self._order(),
            behind=self._reply is not None and self._reply.next_seq > state.next_seq,
            draining=self._draining,
        )

    def _order(self) -> Order | None:
        """The leader's word, if it is about the round that the log has open."""
        opened, told = self.view.state.open_round, self._reply.round if self._reply else None
        return told.instruction if opened and told and told.round == opened.round else None

    def _say(self, move: Move, reason: str) -> None:
        if reason != self.waiting_for:
            logger.bind(event="move", move=move.value, head=self.view.state.head).info("{}: {}", move.value, reason)
        self.waiting_for = reason

    # The moves.

    async def _wait(self) -> None:
        self.phase = Phase.WAITING
        await self._let_train(False)
        await self.changed.wait()

    async def _train(self) -> None:
        self.phase = Phase.TRAINING
        await self._let_train(True)
        await self.changed.wait()

    async def _sync(self) -> None:
        self.phase = Phase.SYNCING if self.held is None else Phase.APPLYING
        state, held = self.view.state, self.held
        try:
            self.held = await in_thread(lambda: bring_to_head(self.context.reader, state, held))
        except RemoteError as error:
            self.trouble = str(error)
            return await self._syncing.bear(error)
        self._syncing.relax()
        logger.bind(event="revision", revision=state.head).info(
            "holds revision {}, weights {} proved", state.head, self.held.sha256[:12]
        )

    async def _begin(self) -> None:
        opened, held, carried = self.view.state.open_round, self.held, self.ledger.carried
        assert opened is not None
        assert held is not None
        assert self._dataset is not None
        stream = SampleStream(
            self._dataset, held.sha256, opened.round, self.context.signer.hotkey, self.context.spec.data.seq_len
        )
        assignment = Assignment(opened.round, held.revision, held.sha256, held.weights, stream)
        await self.context.worker.call(lambda work: work.begin(assignment, carried))
        self.ledger.taken_up()
        self.begun, self.trouble = opened.round, ""

    async def _submit(self) -> None:
        self.phase = Phase.ENCODING
        await self._let_train(False)
        sent = await self._encode()
        if sent is not None:
            await self.ledger.hand_in(sent)

    async def _encode(self) -> Submission | None:
        """The round's submission; None when the gates would refuse it."""
        spec, memory, held = self.context.spec, self.ledger.memory.feedback, self.held
        assert held is not None
        work = await self.context.worker.call(RoundWork.done)
        try:
            return await in_thread(lambda: build(spec, memory, work, held.weights, self.context.signer))
        except Rejected as error:
            self.gave_up, self.trouble = True, f"not sent: {error}"
            logger.error("round {} is not handed in: {}; the work stays in the residual", work.round, error)
            return None

    async def _deliver(self) -> None:
        self.phase = Phase.UPLOADING
        pending = self.ledger.pending
        if self._delivery is None and pending is not None:
            self._delivery = asyncio.create_task(self._uplink.deliver(pending))
            self._delivery.add_done_callback(lambda _: self.changed.set())
        await self.changed.wait()

    def _take_delivery(self) -> None:
        """What the delivery came to, once it has ended. Raises what it ended with."""
        if self._delivery is None or not self._delivery.done():
            return
        ended, self._delivery = self._delivery, None
        delivery, sent = ended.result(), self.ledger.pending
        assert sent is not None
        self._done = True
        self.trouble = "" if delivery.accepted else f"refused: {delivery.code}: {delivery.reason}"
        level = "INFO" if delivery.accepted else "ERROR"
        logger.bind(event="delivery", round=sent.round, accepted=delivery.accepted, code=delivery.code).log(
            level, "round {}: {}", sent.round, delivery.reason
        )

    async def _settle(self) -> None:
        self.phase = Phase.APPLYING
        await self._let_train(False)
        self._drop_delivery()
        round_id = self._ended_round()
        moved = optimizer = None
        if self.begun is not None and self.held is not None:
            work, optimizer = await self.context.worker.call(lambda w: (w.done(), w.trainer.optimizer_state()))
            moved = work.local - self.held.weights
        settled = await self.ledger.settle(self.view, round_id, moved, optimizer)
        if self.begun is not None:
            await self.context.worker.call(RoundWork.drop)
        self.begun, self._done, self.gave_up = None, False, False
        logger.bind(event="settled", round=round_id, residual_norm=settled.residual_norm).info(
            "round {} {}: {}; residual norm {:.4g}",
            round_id,
            "committed" if self.view.committed(round_id) else "aborted",
            settled.reason,
            settled.residual_norm,
        )

    # Helpers.

    def _ended_round(self) -> RoundId:
        """The round that waits to be settled."""
        pending, carried = self.ledger.pending, self.ledger.carried
        owner = pending or carried
        if pending is None and self.begun is not None:
            return self.begun
        assert owner is not None, "nothing to settle"
        return owner.round

    async def _let_train(self, on: bool) -> None:
        if on != self._training:
            await self.context.worker.train(on)
            self._training = on

    def _drop_delivery(self) -> None:
        if self._delivery is not None:
            self._delivery.cancel()
            self._delivery = None

    async def _fetch_dataset(self) -> Dataset:
        patience = self.context.patience("fetching the dataset")
        dataset = self.context.spec.data.dataset
        self.waiting_for = "fetching the dataset"
        return await patience.insist(
            lambda: in_thread(lambda: ensure_dataset(self.context.reader, dataset, self.context.cache))
        )

    async def _put_away(self) -> None:
        """Store the work of an unfinished round."""
        self.phase = Phase.DRAINING
        await self._let_train(False)
        if self.begun is None or self.held is None or self.ledger.pending is not None:
            return
        done = await self.context.worker.call(RoundWork.done)
        if done.steps:
            await self.ledger.interrupt(done, self.held.weights)
            logger.info("stored {} steps of round {}", done.steps, done.round)
