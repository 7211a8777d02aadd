"""Starting a validator on a real chain and a real bucket: prove what it stands on, then serve.

Everything that can be wrong with the set-up ends here in one line: the bucket (probed), the run that the subnet's owner
committed, the spec behind it (by hash), this hotkey's right to lead, its seat, the log, the dataset, the port. A chain
or bucket that is away for the moment is waited for.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TypeVar

import torch
from loguru import logger

from common.chain import commitment
from common.chain.commitment import RunLocation
from common.chain.port import ChainPort, Endpoint
from common.chain.sdk import SdkChain, isolate_sdk
from common.chain.wallets import open_wallet
from common.clock import SystemClock
from common.data.fetch import ensure_dataset
from common.errors import OperatorError, Rejected, Retryable, SetupError
from common.identity import KeypairSigner
from common.logs import hide, setup_logging
from common.runlog.reader import load_run
from common.spec import RunSpec
from common.store.config import StorageConfig
from common.store.probe import probe_bucket
from common.store.reader import StoreReader
from common.store.retry import RetryPolicy
from common.store.s3 import S3Store
from common.timeouts import CHAIN_CALL_S
from common.units import Hotkey, Revision
from validator.api.server import bind
from validator.process import Parts, Validator, assemble, serve
from validator.scoring.evaluate import Evaluator

T = TypeVar("T")
START_ATTEMPTS = 12
PATIENCE = RetryPolicy(attempts=START_ATTEMPTS)


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
    storage: StorageConfig
    host: str
    port: int
    publish_ip: str
    device: str
    threads: int
    until_revision: int | None
    json_lines: bool


async def run_validator(settings: Start) -> None:
    """Run until SIGTERM or SIGINT. Raises SetupError and OperatorError before anything is served."""
    opened = open_wallet(settings.wallet_path, settings.wallet, settings.hotkey)
    setup_logging("validator", settings.folder / "logs", settings.json_lines)
    hide(settings.storage.secret_key)
    torch.set_num_threads(settings.threads)
    isolate_sdk(settings.folder / "validator" / "sdk")
    stop = _stop_on_signals()
    sock = bind(settings.host, settings.port)
    chain = SdkChain(settings.chain_url, opened)
    try:
        validator = await _until(stop, _prepare(settings, KeypairSigner(opened.hotkey), chain))
        if validator is not None:
            published = Endpoint(settings.publish_ip, sock.getsockname()[1])
            logger.info("validator {} serves on {}:{}", opened.hotkey_ss58, published.ip, published.port)
            await _until(stop, serve(validator, chain, sock, published))
    finally:
        sock.close()
        await chain.close()
    logger.info("stopped")


async def _prepare(settings: Start, signer: KeypairSigner, chain: ChainPort) -> Validator:
    location = await patiently(lambda: find_run(chain, settings.netuid), "the chain")
    check_location(location, settings.storage)
    store = S3Store(settings.storage)
    await asyncio.to_thread(probe_bucket, store, secrets.token_hex(8))
    reader = StoreReader(store)
    spec = await patiently(lambda: asyncio.to_thread(load_spec, reader, location), "the storage")
    check_spec(spec, settings.netuid, signer.hotkey)
    await patiently(lambda: check_seat(chain, settings.netuid, signer.hotkey), "the chain")
    dataset = await patiently(
        lambda: asyncio.to_thread(ensure_dataset, reader, spec.data.dataset, settings.cache), "the storage"
    )
    until = None if settings.until_revision is None else Revision(settings.until_revision)
    evaluator = Evaluator(spec, dataset, choose_device(settings.device))
    parts = Parts(spec, signer, store, chain, SystemClock(), evaluator, version("brigade"), until)
    return await patiently(lambda: asyncio.to_thread(assemble, parts), "the storage")


async def find_run(chain: ChainPort, netuid: int) -> RunLocation:
    """The run that the subnet's owner committed; ``Retryable`` while there is none yet."""
    owner = await chain.subnet_owner_hotkey(netuid)
    fields = await chain.commitment(netuid, owner)
    if not fields:
        raise Retryable(f"the owner of subnet {netuid} ({owner}) has not committed a run: `brigade run create`")
    return commitment.decode(fields)


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


def check_spec(spec: RunSpec, netuid: int, hotkey: Hotkey) -> None:
    """Whether we may lead this run here."""
    if spec.netuid != netuid:
        raise OperatorError(f"run {spec.run} belongs to subnet {spec.netuid}, not {netuid}")
    if hotkey not in spec.validators:
        raise OperatorError(f"run {spec.run} does not let {hotkey} lead; its spec names {', '.join(spec.validators)}")


async def check_seat(chain: ChainPort, netuid: int, hotkey: Hotkey) -> None:
    """A validator without a seat can neither be found nor pay."""
    if (await chain.metagraph(netuid)).by_hotkey(hotkey) is None:
        raise SetupError(f"hotkey {hotkey} has no seat on subnet {netuid}: register it first")


def choose_device(name: str) -> str:
    """The device that a setting names. OperatorError when this machine lacks it."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise OperatorError(f"--device {name}: PyTorch sees no GPU here; use cpu or auto")
    if name != "cpu" and not name.startswith("cuda"):
        raise OperatorError(f"--device {name!r}: choose auto, cpu, cuda or cuda:<number>")
    return name


async def patiently(action: Callable[[], Awaitable[T]], what: str) -> T:
    """Repeat over passing faults. SetupError when it does not get better, and for refusals at the start."""
    for failures in range(1, START_ATTEMPTS + 1):
        try:
            return await asyncio.wait_for(action(), 4 * CHAIN_CALL_S)
        except Rejected as refusal:
            raise SetupError(f"{what}: {refusal}") from refusal
        except (Retryable, TimeoutError) as fault:
            if failures == START_ATTEMPTS:
                raise SetupError(f"{what} does not answer: {fault}") from fault
            logger.warning("waiting for {}: {}", what, fault)
            await asyncio.sleep(PATIENCE.wait_s(failures, getattr(fault, "retry_after_s", None), random.random))
    raise AssertionError("unreachable")


def _stop_on_signals() -> asyncio.Event:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop


async def _until(stop: asyncio.Event, work: Awaitable[T]) -> T | None:
    """The result of ``work``, or None when we were told to stop before it was done."""
    task, stopping = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    await asyncio.wait((task, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not task.done():
        task.cancel()
        await asyncio.wait((task,), timeout=5.0)
        return None
    return task.result()
