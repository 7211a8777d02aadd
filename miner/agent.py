"""One miner's process: finds the run, opens what it needs, and keeps its tasks going until it is told to stop.

Start-up waits patiently for the chain and the bucket; only what an operator must change ends it (no seat on the
subnet, a commitment of a newer version, another process in the same folder). Afterwards nothing outside ends it.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from dataclasses import dataclass, field
from pathlib import Path

from loguru import logger

from common.blocking import in_thread
from common.chain.port import ChainPort
from common.clock import Clock
from common.errors import Rejected, Retryable, SetupError
from common.identity import KeypairSigner
from common.model.layout import run_layouts
from common.model.shards import plan_shards
from common.runlog.reader import LogReader, load_run
from common.spec import RunSpec, spec_hash
from common.store.http import HttpClient
from common.units import Hotkey, ShardId
from common.wire import Heartbeat, HeartbeatReply
from miner.complaints import Complaints
from miner.context import Context
from miner.deadlines import DEFAULT_NOTICE_S, Deadlines
from miner.discovery import Found, LeaderLink, find_seat
from miner.follow import LogView
from miner.follower import Follower
from miner.heart import Heart
from miner.jobs import Job
from miner.ledger import Ledger
from miner.meter import UploadMeter
from miner.patience import AsyncSleep, Patience, Uniform
from miner.places import StoragePlace
from miner.prober import LinkKind, Prober
from miner.receipts import Receipts
from miner.reducer import Reducer
from miner.report import Reporter
from miner.session import Session
from miner.startlog import first_view
from miner.state import StateFolder, lock_folder
from miner.trainer import Trainer
from miner.uplink import Uplink
from miner.watch import Watch
from miner.whereabouts import Whereabouts
from miner.work import RoundWork
from miner.worker import Worker

SHARD = ShardId(0)
FOR_THE_OPERATOR = frozenset({"not_registered", "bad_commitment", "bad_endpoint"})
"""Refusals at the start that waiting does not cure."""


@dataclass(frozen=True)
class Settings:
    """What the operator chose."""

    netuid: int
    folder: Path
    """State of this miner."""
    cache: Path
    """Datasets; miners of one machine may share it."""
    device: str
    """cpu or cuda:<number>."""
    threads: int
    max_tokens_per_s: float | None
    allow_private: bool
    """Whether validators and storage at private addresses are called."""
    notice_s: float = DEFAULT_NOTICE_S
    """From being told to stop to the end."""


@dataclass(frozen=True)
class Ports:
    """The outside world and chance."""

    chain: ChainPort
    signer: KeypairSigner
    clock: Clock
    sleep: AsyncSleep = asyncio.sleep
    uniform: Uniform = random.random
    session: str = field(default_factory=lambda: secrets.token_hex(16))
    """Random name of this process."""


@dataclass(frozen=True)
class Stop:
    """How the process is told to end."""

    drain: asyncio.Event = field(default_factory=asyncio.Event)
    """Within the notice."""
    now: asyncio.Event = field(default_factory=asyncio.Event)
    """Leaving behind what is not on disk."""

    def ask(self) -> None:
        """Once for an orderly end, twice for one at once."""
        (self.now if self.drain.is_set() else self.drain).set()


class Agent:
    """Runs a miner until it is told to stop."""

    def __init__(self, settings: Settings, ports: Ports, stop: Stop) -> None:
        self._settings = settings
        self._ports = ports
        self._stop = stop
        self._session: Session | None = None

    async def run(self) -> None:
        """Returns after an orderly stop. Raises ``SetupError`` and ``Fatal``."""
        work = asyncio.create_task(self._work())
        told, at_once = (asyncio.create_task(event.wait()) for event in (self._stop.drain, self._stop.now))
        try:
            await asyncio.wait({work, told, at_once}, return_when=asyncio.FIRST_COMPLETED)
            if self._session is not None:
                await self._drain(self._session, work, at_once)
        finally:
            for task in (work, told, at_once):
                task.cancel()
        if work.done() and not work.cancelled():
            work.result()

    async def _drain(self, session: Session, work: asyncio.Task[None], at_once: asyncio.Task[bool]) -> None:
        """The last submission within the notice; a second signal waits for nothing."""
        session.drain()
        await asyncio.wait({work, at_once}, timeout=session.times.hurry_s, return_when=asyncio.FIRST_COMPLETED)
        session.hurry()
        await asyncio.wait({work, at_once}, timeout=session.times.leave_s, return_when=asyncio.FIRST_COMPLETED)

    async def _work(self) -> None:
        found = await self._patience("finding the run").insist(self._find)
        location, settings = found.location, self._settings
        where = Whereabouts(location, self._ports.chain, settings.netuid, self._ports.clock, settings.allow_private)
        spec = await self._patience("fetching the spec").insist(
            lambda: in_thread(lambda: load_run(where.reader, location.run, location.spec_sha256))
        )
        require_whole_model(spec)
        times = Deadlines.of(spec, self._settings.notice_s)
        logger.bind(event="run", run=spec.run, uid=found.seat.uid).info("run {}, uid {}", spec.run, found.seat.uid)
        folder = self._settings.folder / f"{spec.run}-{spec_hash(spec)[:12]}"
        with lock_folder(folder):
            await self._mine(spec, where, folder, times)

    async def _find(self) -> Found:
        try:
            found = await find_seat(self._ports.chain, self._settings.netuid, self._ports.signer.hotkey)
            if not self._settings.allow_private:
                await in_thread(StoragePlace.of(found.location).check_public)
        except Rejected as refusal:
            if refusal.code in FOR_THE_OPERATOR:
                raise SetupError(refusal.message) from refusal
            raise
        return found

    async def _mine(self, spec: RunSpec, where: Whereabouts, folder: Path, times: Deadlines) -> None:
        hotkey, count = self._ports.signer.hotkey, run_layouts(spec.model, spec.num_shards)[SHARD].total
        ledger = await in_thread(lambda: Ledger.open(spec, StateFolder(folder, spec, hotkey, count), count))
        worker = Worker(lambda: self._make_work(spec, ledger), self._settings.max_tokens_per_s)
        context = self._context(spec, where, worker)
        view = await context.patience("reading the log").insist(
            lambda: first_view(context.log, hotkey, self._ports.chain, self._settings.netuid)
        )
        ports, settings = self._ports, self._settings
        link = LeaderLink(ports.chain, settings.netuid, ports.signer, ports.clock, settings.allow_private)
        worker.start()
        try:
            await self._tasks(context, where, folder, ledger, view, link, times)
        finally:
            await worker.stop()
            await link.close()

    async def _tasks(
        self,
        context: Context,
        where: Whereabouts,
        folder: Path,
        ledger: Ledger,
        view: LogView,
        link: LeaderLink,
        times: Deadlines,
    ) -> None:
        """The heart, the reader of the log and the session, until the session ends."""
        meter = UploadMeter(context.clock.monotonic_s)
        receipts = await in_thread(lambda: Receipts(folder, context.spec.run, lambda: session.view.state))
        uplink = Uplink(
            lambda: link.client(_leader(session)),
            link.doubt,
            meter,
            context.patience("handing in the delta"),
            context.storage,
            keep=receipts.keep,
        )
        self._session = session = Session(context, uplink, meter, ledger, view, times)
        follower = Follower(context, session, where)
        http = HttpClient(connections=1)
        reporter = Reporter(session, meter)
        reducer = Reducer(
            context,
            where.reader,
            lambda: link.client(_leader(session)),
            lambda: session.view,
            http,
            sent=lambda: reporter.made,
        )
        prober = Prober(
            context,
            where.reader,
            lambda: link.client(_leader(session)),
            http,
            busy=lambda kind: reducer.at_work or _uses_link(kind, session, meter),
        )
        heart = Heart(
            link,
            meter,
            context.clock,
            context.sleep,
            context.spec.round.heartbeat_s,
            context.patience("heartbeat"),
            leader=lambda: session.view.state.leader,
            describe=reporter.describe,
            on_reply=lambda beat, reply: _heard(beat, reply, follower, reducer, prober),
        )
        private = self._settings.allow_private
        complaints = Complaints(context, receipts, lambda: session.view, self._ports.chain, private)
        watch = Watch(session, self._settings.max_tokens_per_s)
        others = [asyncio.create_task(part.run()) for part in (heart, follower, complaints, watch, reducer, prober)]
        working = asyncio.create_task(session.run())
        try:
            await asyncio.wait({working, *others}, return_when=asyncio.FIRST_COMPLETED)
            for task in (*others, working):
                if task.done():
                    task.result()
            await heart.farewell()
        finally:
            for task in (*others, working):
                task.cancel()
            await asyncio.wait({working, *others})  # nobody uses the connections any more when they are closed
            uplink.close()
            http.close()

    def _context(self, spec: RunSpec, where: Whereabouts, worker: Worker) -> Context:
        return Context(
            spec=spec,
            signer=self._ports.signer,
            clock=self._ports.clock,
            sleep=self._ports.sleep,
            uniform=self._ports.uniform,
            reader=where.reader,
            log=LogReader(where.reader, spec, where.place),
            storage=where,
            worker=worker,
            cache=self._settings.cache,
            session=self._ports.session,
            started_s=self._ports.clock.monotonic_s(),
        )

    def _make_work(self, spec: RunSpec, ledger: Ledger) -> RoundWork:
        shard = plan_shards(spec.model, spec.num_shards)[SHARD]
        trainer = Trainer(spec, shard, self._settings.device, self._settings.threads)
        trainer.restore_optimizer(ledger.optimizer)
        return RoundWork(trainer, spec.inner)

    def _patience(self, what: str) -> Patience:
        return Patience(what, self._ports.sleep, self._ports.uniform)


def require_whole_model(spec: RunSpec) -> None:
    """Raise SetupError for a run that this version can't train."""
    if spec.num_shards != 1:
        raise SetupError(
            f"run {spec.run} is split into {spec.num_shards} shards, and this version trains whole models only: "
            "update brigade, or choose another subnet"
        )


def _heard(beat: Heartbeat, reply: HeartbeatReply, follower: Follower, reducer: Reducer, prober: Prober) -> None:
    follower.heard(reply)
    reducer.heard(beat.seq, reply)
    prober.heard(reply)


def _uses_link(kind: LinkKind, session: Session, meter: UploadMeter) -> bool:
    """Whether a delta goes up, or the dataset or a revision comes down."""
    if kind == "uplink":
        return meter.view() is not None
    return Job.FETCH in session.jobs or Job.SYNC in session.jobs


def _leader(session: Session) -> Hotkey:
    leader = session.view.state.leader
    if leader is None:
        raise Retryable("no validator leads the run yet")
    return leader
