"""Starting a validator on a real chain and a real bucket: prove what it stands on, then serve.

Everything that can be wrong with the set-up ends here in one line: the bucket (probed), the run that the subnet's owner
committed, the spec behind it (by hash), this hotkey's right to lead, its seat, the log, the dataset, the port. A chain
or bucket that is away is waited for, however long: nobody has to start a validator again because it began in an outage.
"""

from __future__ import annotations

import asyncio
import fcntl
import itertools
import random
import secrets
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TypeVar

import torch
from loguru import logger

from common import keys, timeouts
from common.blocking import in_thread
from common.chain.commitment import RunLocation
from common.chain.discovery import base_url, find_run
from common.chain.port import ChainPort, Endpoint
from common.chain.sdk import SdkChain, isolate_sdk
from common.chain.wallets import open_wallet
from common.clock import SystemClock
from common.data.fetch import ensure_dataset
from common.errors import OperatorError, Rejected, Retryable, SetupError
from common.identity import KeypairSigner
from common.logs import hide, setup_logging
from common.merge.networks import AsnTable
from common.model.device import choose_device
from common.runlog.casput import Patience
from common.runlog.reader import load_run
from common.spec import RunSpec, spec_hash
from common.store.config import StorageConfig
from common.store.place import BucketPlace
from common.store.port import ObjectStore
from common.store.probe import StorageAway, probe_bucket
from common.store.reader import HttpReader, StoreReader
from common.store.retry import NO_RETRIES, RetryPolicy
from common.store.s3 import S3Store
from common.store.switching import SwitchingStore
from common.timeouts import CHAIN_CALL_S
from common.units import Hotkey, Revision
from validator.api.server import bind
from validator.process import Parts, Validator, assemble, serve
from validator.publicplace import PublicStore
from validator.reports_place import FolderReports, api_address
from validator.round.deadlines import Deadlines
from validator.scoring.evaluate import Evaluator

T = TypeVar("T")
TOLD_EVERY_S = 60.0
"""A start that waits says so at least so often."""
PATIENCE = RetryPolicy()
"""Between two tries at the start, of which there is no last one."""
LOG_PATIENCE = Patience(RetryPolicy(attempts=3))
"""Of single calls; the driver holds and repeats beyond that, and says so."""


@dataclass(frozen=True)
class Start:
    """The settings of one process."""

    netuid: int
    wallet_path: Path
    wallet: str
    hotkey: str
    chain_url: str
    folder: Path
    cache: Path
    storage: StorageConfig | None
    """None: this validator has no write access; it reads at the public address and follows."""
    storage_file: Path | None
    """Where these came from, and where an operator puts new keys; None when they came as flags."""
    host: str
    port: int
    publish_ip: str
    device: str
    threads: int
    until_revision: int | None
    asns: AsnTable
    """Which autonomous systems miners' addresses belong to, as far as the operator has said."""
    json_lines: bool


async def run_validator(settings: Start) -> None:
    """Run until SIGTERM or SIGINT. Raises SetupError and OperatorError before anything is served."""
    opened = open_wallet(settings.wallet_path, settings.wallet, settings.hotkey)
    setup_logging("validator", settings.folder / "logs", settings.json_lines)
    if settings.storage is not None:
        hide(settings.storage.secret_key)
    if settings.asns.starts:
        logger.info("the ASN table has {} ranges of addresses", len(settings.asns.starts))
    torch.set_num_threads(settings.threads)
    own = settings.folder / "validator"
    isolate_sdk(own / "sdk")
    stop = _stop_on_signals()
    with locked(own / f"{opened.hotkey_ss58}.lock"):
        sock = bind(settings.host, settings.port)
        chain = SdkChain(settings.chain_url, opened)
        try:
            published = Endpoint(settings.publish_ip, sock.getsockname()[1])
            validator = await until(stop, _prepare(settings, KeypairSigner(opened.hotkey), chain, published))
            if validator is not None:
                logger.info("validator {} serves on {}:{}", opened.hotkey_ss58, published.ip, published.port)
                await until(stop, serve(validator, chain, sock, published))
        finally:
            sock.close()
            await chain.close()
    logger.info("stopped")


async def _prepare(settings: Start, signer: KeypairSigner, chain: ChainPort, published: Endpoint) -> Validator:
    location = await patiently(lambda: find_run(chain, settings.netuid), "the chain", 4 * CHAIN_CALL_S)
    store = await _open_store(location, settings.storage)
    reader = StoreReader(store)
    spec = await patiently(lambda: in_thread(lambda: load_spec(reader, location)), "the storage")
    check_spec(spec, settings.netuid)
    await patiently(lambda: check_seat(chain, settings.netuid, signer.hotkey), "the chain", 4 * CHAIN_CALL_S)
    dataset = await patiently(
        lambda: in_thread(lambda: ensure_dataset(reader, spec.data.dataset, settings.cache)), "the storage"
    )
    last = None if settings.until_revision is None else Revision(settings.until_revision)
    evaluator = Evaluator(spec, dataset, choose_device(settings.device))
    own, reports = None, reports_address(settings.storage, spec.run, signer.hotkey, published)
    if settings.storage is None:
        folder = settings.folder / "validator" / signer.hotkey / f"{spec.run}-{spec_hash(spec)[:12]}" / "reports"
        own = FolderReports(folder, spec.run, signer.hotkey)
    parts = Parts(
        spec=spec,
        signer=signer,
        store=store,
        chain=chain,
        clock=SystemClock(),
        evaluator=evaluator,
        version=version("brigade"),
        until_revision=last,
        storage_file=settings.storage_file,
        reports_address=reports,
        patience=LOG_PATIENCE,
        asns=settings.asns,
        reports=own,
    )
    validator = await patiently(lambda: in_thread(lambda: assemble(parts)), "the storage")
    if own is not None:
        logger.warning("no keys of the storage: this validator follows, and serves its reports at {}", reports)
    elif not validator.board.journal.may_lead():
        logger.warning(
            "run {} does not let {} lead: this process follows until the owner names it (`brigade run leaders`)",
            spec.run,
            signer.hotkey,
        )
    return validator


async def _open_store(location: RunLocation, storage: StorageConfig | None) -> ObjectStore:
    """With keys the bucket, proved to be ours to write; without keys what everybody can read of it."""
    if storage is None:
        if not location.public_read:
            raise OperatorError(f"the bucket of run {location.run} can't be read without keys: give --storage")
        return PublicStore(location, HttpReader(base_url(location), policy=NO_RETRIES))
    check_location(location, storage)
    await patiently(lambda: in_thread(lambda: try_bucket(storage)), "the storage")
    place = BucketPlace(location.endpoint, location.bucket, location.prefix)
    return SwitchingStore(S3Store(storage, policy=NO_RETRIES), place)  # who calls it repeats


def try_bucket(storage: StorageConfig) -> None:
    """Blocking. SetupError for what an operator has to change, Retryable while nobody answers."""
    try:
        probe_bucket(S3Store(storage), secrets.token_hex(8))
    except StorageAway as away:
        raise Retryable(str(away)) from away


def reports_address(storage: StorageConfig | None, run: str, hotkey: Hotkey, published: Endpoint) -> str:
    """Where this validator's reports can be read, as its commitment on chain tells."""
    if storage is None:
        return api_address(published.ip, published.port)
    return f"{storage.public_base_url()}/{keys.reports_prefix(run, hotkey).rstrip('/')}"


def check_location(location: RunLocation, storage: StorageConfig) -> None:
    """The bucket that we write to must be the one that miners read from."""
    if (location.bucket, location.prefix) != (storage.bucket, storage.prefix):
        ours, theirs = f"{storage.bucket}/{storage.prefix}", f"{location.bucket}/{location.prefix}"
        raise OperatorError(f"the storage settings name {ours}, but the run on chain lives in {theirs}")


def load_spec(reader: StoreReader, location: RunLocation) -> RunSpec:
    """The spec, proved by the hash on chain. SetupError when the bucket holds another or none."""
    try:
        return load_run(reader, location.run, location.spec_sha256)
    except Rejected as refusal:
        raise SetupError(f"the spec of run {location.run} is not what its owner committed: {refusal}") from refusal


def check_spec(spec: RunSpec, netuid: int) -> None:
    """Whether this run can be led here; who may lead it is told by its log."""
    if spec.netuid != netuid:
        raise OperatorError(f"run {spec.run} belongs to subnet {spec.netuid}, not {netuid}")
    try:
        Deadlines.of(spec)
    except ValueError as error:
        raise OperatorError(f"run {spec.run} can't be led: {error}") from error


async def check_seat(chain: ChainPort, netuid: int, hotkey: Hotkey) -> None:
    """A validator without a seat can neither be found nor pay."""
    if (await chain.metagraph(netuid)).by_hotkey(hotkey) is None:
        raise SetupError(f"hotkey {hotkey} has no seat on subnet {netuid}: register it first")


async def patiently(action: Callable[[], Awaitable[T]], what: str, limit_s: float | None = None) -> T:
    """Repeat over passing faults for as long as they last, and say each once, and again now and then. SetupError for
    refusals. ``limit_s`` is for one try whose parts have no limits of their own: a long log may take its time."""
    told, told_s = "", 0.0
    for failures in itertools.count(1):
        try:
            return await asyncio.wait_for(action(), limit_s)
        except Rejected as refusal:
            raise SetupError(f"{what}: {refusal}") from refusal
        except (Retryable, TimeoutError) as fault:
            found = str(fault) or "no answer in time"
            again = found == told and time.monotonic() - told_s < TOLD_EVERY_S
            logger.log("DEBUG" if again else "WARNING", "waiting for {}: {}", what, found)
            told, told_s = found, told_s if again else time.monotonic()
            await asyncio.sleep(PATIENCE.wait_s(failures, getattr(fault, "retry_after_s", None), random.random))
    raise AssertionError("unreachable")


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock file for this process. SetupError when another validator of the same hotkey runs from this folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise SetupError(f"another validator with this hotkey runs from {path.parent.parent}; stop it") from None
        yield


def _stop_on_signals() -> asyncio.Event:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop


async def until(stop: asyncio.Event, work: Awaitable[T]) -> T | None:
    """The result of ``work``, or None when we were told to stop before it was done."""
    task, stopping = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    await asyncio.wait((task, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not task.done():
        task.cancel()
        await asyncio.wait((task,), timeout=timeouts.ROLE_STOP_S)
        return None
    return task.result()
