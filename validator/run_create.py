"""``brigade run create``: put a new run into the bucket and its location on chain.

Order: the dataset, then spec, revision 0 and genesis (``common.runlog.genesis``), and last the commitment on chain, so
that whoever finds the commitment finds everything behind it. Idempotent: the same inputs continue where an earlier
attempt stopped and change nothing that is there; other inputs under the same name are refused, since a spec never
changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from common import keys
from common.chain.commitment import RunLocation
from common.chain.commitment import encode as encode_location
from common.chain.port import ChainPort
from common.chain.wallets import open_wallet
from common.clock import Clock, SystemClock
from common.data.index import INDEX_NAME, MAX_INDEX_BYTES, DatasetIndex, decode_index
from common.defaults import DEFAULT_PRESET, LEADER, POLICIES, Choices, check, make_spec
from common.errors import OperatorError, Rejected, SetupError
from common.identity import KeypairSigner, Signer
from common.options import Reduce
from common.runlog.casput import Patience
from common.runlog.genesis import create_run
from common.runlog.reader import LogReader
from common.runlog.state import RunState
from common.spec import RunSpec, spec_hash
from common.store.config import StorageConfig, load_config
from common.store.port import ObjectStore
from common.store.reader import StoreReader
from common.store.s3 import S3Store
from common.units import Hotkey, Sha256, format_bytes, sha256_hex

Say = Callable[[str], None]


def read_dataset(folder: Path) -> tuple[Sha256, DatasetIndex]:
    """The identifier and index of a prepared dataset. Raises SetupError, saying what to do."""
    try:
        data = (folder / INDEX_NAME).read_bytes()[:MAX_INDEX_BYTES]
        return sha256_hex(data), decode_index(data)
    except FileNotFoundError:
        raise SetupError(f"{folder} holds no dataset: make one with `brigade data prepare --out {folder}`") from None
    except Rejected as error:
        raise SetupError(f"{folder / INDEX_NAME}: {error.message}; prepare the dataset again") from error


def start_run(
    store: ObjectStore,
    spec: RunSpec,
    dataset: Path,
    owner: Signer,
    clock: Clock,
    say: Say,
    patience: Patience | None = None,
) -> RunState:
    """Put everything that a run begins with into the bucket, or find it there; the state of its log.

    ``owner`` signs the genesis; ``patience`` is for the store's faults. Raises OperatorError when the bucket
    holds another run of this name.
    """
    upload_dataset(store, spec.data.dataset, dataset, say)
    try:
        state = create_run(store, spec, owner, clock, patience=patience)
        say(f"run {spec.run} begins, spec {spec_hash(spec)[:12]}…")
        return state
    except Rejected as error:
        if error.code != "run_exists":
            raise
    return LogReader(StoreReader(store), spec).catch_up()


def upload_dataset(store: ObjectStore, dataset: Sha256, folder: Path, say: Say) -> None:
    """Put the token files, then the index. What is there already is left alone: names hold hashes."""
    found, index = read_dataset(folder)
    if found != dataset:
        raise OperatorError(f"{folder} holds dataset {found[:12]}…, and the run is for {dataset[:12]}…")
    for file in index.files:
        key = keys.dataset_file_key(dataset, file.sha256)
        known = store.head(key)
        if known is None or known.size_bytes != index.size_bytes(file):
            say(f"uploading {file.split} data, {format_bytes(index.size_bytes(file))}")
            store.put(key, _checked_file(folder / file.name, file.sha256))
    if store.head(keys.dataset_index_key(dataset)) is None:
        store.put(keys.dataset_index_key(dataset), (folder / INDEX_NAME).read_bytes())


async def publish(chain: ChainPort, netuid: int, owner: Hotkey, location: RunLocation, say: Say) -> None:
    """Commit the run's location on chain, unless it stands there already."""
    fields = encode_location(location)
    if await chain.commitment(netuid, owner) != fields:
        await chain.set_commitment(netuid, fields)
        say(f"run {location.run} is committed on subnet {netuid}")


def location_of(spec: RunSpec, storage: StorageConfig, public_read: bool = True) -> RunLocation:
    """Where readers find the run."""
    return RunLocation(spec.run, spec_hash(spec), storage.endpoint, storage.bucket, storage.prefix, public_read)


def _checked_file(path: Path, sha256: Sha256) -> bytes:
    data = path.read_bytes() if path.is_file() else b""
    if sha256_hex(data) != sha256:
        raise SetupError(f"{path} is missing or does not match its hash; prepare the dataset again")
    return data


def create(
    run: Annotated[str, typer.Option(envvar="BRIGADE_RUN", help="Name of the run: a-z, 0-9 and dashes.")],
    netuid: Annotated[int, typer.Option(envvar="BRIGADE_NETUID", help="The subnet, owned by the wallet.")],
    chain: Annotated[str, typer.Option(envvar="BRIGADE_CHAIN", help="ws:// URL of a node, or a network's name.")],
    storage: Annotated[
        Path, typer.Option(envvar="BRIGADE_STORAGE", help="File with the bucket and its keys (storage.json).")
    ],
    data: Annotated[Path, typer.Option(envvar="BRIGADE_DATASET", help="Folder made by `brigade data prepare`.")],
    validator: Annotated[
        list[str], typer.Option(envvar="BRIGADE_VALIDATORS", help="Hotkey (SS58) that may lead; may be repeated.")
    ],
    wallet_path: Annotated[Path, typer.Option(envvar="BRIGADE_WALLET_PATH", help="Folder of wallets.")],
    wallet: Annotated[str, typer.Option(envvar="BRIGADE_WALLET", help="Wallet of the subnet's owner.")] = "owner",
    hotkey: Annotated[str, typer.Option(envvar="BRIGADE_HOTKEY", help="Its hotkey.")] = "default",
    preset: Annotated[
        str, typer.Option(envvar="BRIGADE_PRESET", help=f"Model: {', '.join(POLICIES)}.")
    ] = DEFAULT_PRESET,
    seed: Annotated[int, typer.Option(envvar="BRIGADE_SEED", help="Seed of the first weights.", min=0)] = 0,
    miners: Annotated[
        int, typer.Option(envvar="BRIGADE_MINERS", help="Miners that a round's token target is made for.", min=1)
    ] = 4,
    codec: Annotated[str, typer.Option(envvar="BRIGADE_CODEC", help="How deltas are sent: topk or bf16.")] = "topk",
    density: Annotated[
        int | None,
        typer.Option(envvar="BRIGADE_DENSITY", help="Values kept of each 4,096, instead of the schedule.", min=1),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(envvar="BRIGADE_STEPS", help="Inner steps of a miner in a round.", min=1)
    ] = None,
    num_shards: Annotated[
        int, typer.Option(envvar="BRIGADE_NUM_SHARDS", help="Contiguous parts of the model.", min=1)
    ] = 1,
    reduce: Reduce = LEADER,
) -> None:
    """Create a run: dataset, spec, revision 0 and genesis into the bucket, its location onto the chain."""
    choices = Choices(run, preset, seed, miners, codec, density, steps, num_shards, reduce)
    check(choices)
    keys_of_owner = open_wallet(wallet_path, wallet, hotkey)
    config = load_config(storage)
    dataset, index = read_dataset(data)
    owner = KeypairSigner(keys_of_owner.hotkey)
    spec = make_spec(choices, netuid, owner.hotkey, [Hotkey(v) for v in validator], dataset, index.tokenizer)
    start_run(S3Store(config), spec, data, owner, SystemClock(), typer.echo)
    from common.chain.sdk import SdkChain  # takes half a second, which the other commands of `run` need not wait for

    asyncio.run(_publish(SdkChain(chain, keys_of_owner), netuid, owner.hotkey, location_of(spec, config)))
    typer.echo(f"spec {spec_hash(spec)}")


async def _publish(chain: ChainPort, netuid: int, owner: Hotkey, location: RunLocation) -> None:
    try:
        found = await chain.subnet_owner_hotkey(netuid)
        if found != owner:
            raise OperatorError(f"subnet {netuid} belongs to {found}; its run is committed by that hotkey")
        await publish(chain, netuid, owner, location, typer.echo)
    finally:
        await chain.close()
