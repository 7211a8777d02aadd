"""One validator process put together: parts in, tasks running in one event loop, orderly end.

``assemble`` builds the parts over any store and chain, which is how tests and the command build the same thing.
``serve`` runs the HTTP server, the driver, the scorer and the payments until it is told to stop; a part that dies of
an error that nobody foresaw ends the process, so that its supervisor restarts it from the log.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fastapi import FastAPI

from common.chain.port import ChainPort, Endpoint
from common.clock import Clock
from common.identity import KeypairSigner
from common.merge.networks import NO_TABLE, AsnTable
from common.runlog.casput import Patience
from common.runlog.lease import LeaseKeeper
from common.runlog.writer import LogWriter
from common.spec import RunSpec, spec_hash
from common.store.port import ObjectStore
from common.store.reader import StoreReader
from common.store.switching import SwitchingStore
from common.units import Revision
from validator.api.app import create_app
from validator.api.security import Gatekeeper
from validator.api.server import Server
from validator.audits.complaints import Complaints
from validator.audits.convictions import Convictions
from validator.audits.plans import Plans
from validator.board import Board
from validator.bodies import RememberingReader
from validator.butterfly import Butterfly
from validator.driver import Driver
from validator.effects import Effects
from validator.following import Following
from validator.heads import Heads
from validator.headsonchain import HeadGuard, HeadsOnChain
from validator.healthdesk import HealthDesk
from validator.intake import Intake
from validator.journal import Journal
from validator.leadership import Leadership
from validator.lies import Lies
from validator.members import Members
from validator.membership import Membership
from validator.payments import Payments, keep_served
from validator.presence import Presence
from validator.probing import Probing
from validator.publicplace import PublicPlace, PublicStore
from validator.reads import WatchedReader
from validator.reports_place import ReportStore
from validator.routine import Routine
from validator.scorer import Scorer
from validator.scoring.evaluate import Evaluator
from validator.service import ValidatorService
from validator.storagekeys import Moving, StorageKeys, moved_away
from validator.uploads import Uploads
from validator.vitals import Vitals
from validator.watchdog.task import Watchdog

INSTANCE_BYTES = 16


@dataclass(frozen=True)
class Parts:
    """What a validator is made of."""

    spec: RunSpec
    signer: KeypairSigner
    store: ObjectStore
    chain: ChainPort
    clock: Clock
    evaluator: Evaluator
    version: str
    until_revision: Revision | None = None
    storage_file: Path | None = None
    """Where the store's keys came from; read again when it changes, if the store can be switched."""
    reports_address: str = ""
    """Where this validator's reports are, as its commitment on chain tells."""
    patience: Patience | None = None
    """How storage calls of log and lease are repeated; the default when None."""
    asns: AsnTable = NO_TABLE
    """Of the miners' addresses, as the operator has given it."""
    entropy: Callable[[int], bytes] = secrets.token_bytes
    """So many random bytes that nobody foresees."""
    reports: ReportStore | None = None
    """Where reports go when the store can only be read; None: into the store."""


@dataclass(frozen=True)
class Validator:
    """A validator ready to run."""

    board: Board
    service: ValidatorService
    driver: Driver
    scorer: Scorer
    payments: Payments
    watchdog: Watchdog
    guard: HeadGuard
    heads_on_chain: HeadsOnChain
    storage_keys: StorageKeys | None
    public_place: PublicPlace | None
    convictions: Convictions
    probing: Probing
    app: FastAPI


def assemble(parts: Parts) -> Validator:
    """Build a validator; log and newest report are read. Blocking.

    Raises ``Rejected`` (``no_genesis``, ``bad_genesis``) and ``Retryable``.
    """
    reader = _reader(parts)
    plans = Plans()
    board, guard = _board(parts, reader, plans)
    uploads = Uploads(parts.store)
    heads = Heads(reader)
    scorer = Scorer(board, heads, parts.evaluator)
    scorer.adopt()
    intake = Intake(board, uploads)
    convictions = Convictions(board.reports, parts.spec.run, parts.signer)
    convictions.adopt()
    lies = Lies(board.members, convictions)
    following = Following(board, heads, scorer, plans, convictions, lies)
    complaints = Complaints(board, plans, convictions)
    butterfly = Butterfly(board, parts.chain, parts.entropy, lies) if parts.spec.reduce.kind == "butterfly" else None
    probing = board.health.prober = Probing(board, parts.entropy)
    service = ValidatorService(board, intake, parts.version, complaints, convictions, probing, butterfly)
    effects = Effects(board, heads, intake, scorer, uploads, butterfly)
    driver = Driver(board, effects, scorer, following, parts.until_revision)
    gatekeeper = Gatekeeper(parts.signer, board.membership, parts.clock)
    payments = Payments(board, parts.chain)
    watchdog = Watchdog(board, parts.until_revision)
    on_chain = HeadsOnChain(
        parts.chain, parts.spec.netuid, board.journal, guard, parts.signer.hotkey, parts.reports_address
    )
    return Validator(
        board=board,
        service=service,
        driver=driver,
        scorer=scorer,
        payments=payments,
        watchdog=watchdog,
        guard=guard,
        heads_on_chain=on_chain,
        storage_keys=_storage_keys(parts, board),
        public_place=_public_place(parts, board),
        convictions=convictions,
        probing=probing,
        app=create_app(service, gatekeeper),
    )


def _public_place(parts: Parts, board: Board) -> PublicPlace | None:
    if not isinstance(parts.store, PublicStore):
        return None
    return PublicPlace(parts.store, board.journal, parts.chain, parts.clock)


def _storage_keys(parts: Parts, board: Board) -> StorageKeys | None:
    if parts.storage_file is None or not isinstance(parts.store, SwitchingStore):
        return None
    return StorageKeys(parts.storage_file, parts.store, board.journal, Moving(parts.chain, board.leadership))


def _board(parts: Parts, reader: StoreReader, plans: Plans) -> tuple[Board, HeadGuard]:
    spec, clock, signer, patience = parts.spec, parts.clock, parts.signer, parts.patience
    switching = parts.store if isinstance(parts.store, SwitchingStore) else None
    placed = parts.store if isinstance(parts.store, SwitchingStore | PublicStore) else None
    writer = LogWriter(
        parts.store,
        spec,
        signer,
        clock,
        patience=patience,
        here=lambda: placed.place if placed else None,
        note=plans.note,
    )
    journal = Journal(writer, writer.catch_up(), signer.hotkey)
    if switching is not None:
        switching.gate = lambda: moved_away(journal.state, switching.place)
    instance = secrets.token_hex(INSTANCE_BYTES)
    keeper = LeaseKeeper(
        parts.store, spec, signer, clock, instance, patience=patience, allowed=lambda: journal.state.validators
    )
    guard = HeadGuard(parts.chain, spec.netuid, journal)
    watched = WatchedReader(reader, clock.monotonic_s)
    board = Board(
        spec=spec,
        spec_sha256=spec_hash(spec),
        signer=signer,
        clock=clock,
        store=parts.store,
        reader=RememberingReader(watched),
        reads=watched,
        journal=journal,
        leadership=Leadership(keeper, journal, clock, guard.refusal),
        members=Members(spec.round.member_timeout_s, spec.round.overlap),
        membership=Membership(parts.chain, spec.netuid, clock),
        reports=parts.reports or parts.store,
        read_only=parts.reports is not None,
        asns=parts.asns,
        health=HealthDesk(
            routine=Routine(reads_seen=spec.reduce.kind == "butterfly"),
            vitals=Vitals(presence=Presence.of(spec.round)),
        ),
    )
    return board, guard


def _reader(parts: Parts) -> StoreReader:
    usual = parts.patience or Patience()
    return StoreReader(parts.store, policy=usual.policy, sleep=usual.sleep, uniform=usual.uniform)


async def serve(validator: Validator, chain: ChainPort, sock: socket.socket, published: Endpoint) -> None:
    """Run everything until cancelled, or until a part dies."""
    spec, hotkey = validator.board.spec, validator.board.signer.hotkey
    server = Server(validator.app)
    async with asyncio.TaskGroup() as group:
        group.create_task(server.run_on(sock), name="http")
        group.create_task(keep_served(chain, spec.netuid, hotkey, published), name="endpoint")
        group.create_task(validator.scorer.run(), name="scorer")
        group.create_task(validator.payments.run(), name="payments")
        if validator.storage_keys is not None:
            group.create_task(validator.storage_keys.run(), name="storage keys")
        if validator.public_place is not None:
            group.create_task(validator.public_place.run(), name="place")
        group.create_task(validator.heads_on_chain.run(), name="heads")
        group.create_task(validator.driver.run(), name="driver")
        group.create_task(validator.watchdog.run(), name="watchdog")
        group.create_task(validator.convictions.run(), name="convictions")
        group.create_task(validator.probing.run(), name="probes")
