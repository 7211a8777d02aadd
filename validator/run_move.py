"""``brigade run move``: the owner moves a run to another bucket while it goes on, without restarting anybody."""

from __future__ import annotations

import secrets
import time
from pathlib import Path
from typing import Annotated

import typer

from common import keys, options, timeouts
from common.chain.commitment import RunLocation
from common.chain.discovery import find_run
from common.chain.port import ChainPort
from common.chain.wallets import Wallet, open_wallet
from common.clock import SystemClock
from common.errors import OperatorError, Rejected, RemoteError
from common.identity import KeypairSigner
from common.runlog.entries import StorageMoved
from common.runlog.moving import Buckets, move_run
from common.runlog.owned import move_problem
from common.runlog.owner import append_owned
from common.runlog.reader import LogReader
from common.runlog.state import RunState
from common.runlog.writer import LogWriter
from common.spec import MAX_SPEC_BYTES, RunSpec, spec_hash
from common.store.config import StorageConfig, load_config
from common.store.http import HttpClient
from common.store.place import BucketPlace
from common.store.probe import probe_bucket
from common.store.reader import HttpReader
from common.store.s3 import S3Store
from common.store.transfer import upload
from validator.run_create import location_of, publish
from validator.run_heads import ChainPlace, chain_of, with_chain
from validator.run_leaders import owner_folder
from validator.run_place import Asked, Place, find

SETTLE_S = 2 * timeouts.LEASE_RENEW_S
"""A leader reads the log at each renewal of its lease: after this it has read the move, and writes nothing more."""


def move(
    asked: Asked,
    to: Annotated[Path, typer.Option(envvar="BRIGADE_TO", help="File with the new bucket and its keys.")],
    chain: Annotated[str | None, typer.Option(envvar="BRIGADE_CHAIN", help="ws:// URL, or a network's name.")] = None,
    netuid: Annotated[int | None, typer.Option(envvar="BRIGADE_NETUID", min=0, help="Number of the subnet.")] = None,
    wallet_path: options.WalletPath = None,
    wallet: options.WalletName = "owner",
    hotkey: options.HotkeyName = "default",
) -> None:
    """Move the run to another bucket while it goes on. Typed again after a failure, it continues."""
    place, config = find(asked), load_config(to)
    where = chain_of(asked, chain, netuid)
    if where is None:
        raise OperatorError("the run's place is committed on chain: give --chain and --netuid")
    keys_of_owner = open_wallet(owner_folder(asked, wallet_path), wallet, hotkey)
    spec, owner = place.spec(), KeypairSigner(keys_of_owner.hotkey)
    if owner.hotkey != spec.owner:
        raise OperatorError(f"run {spec.run} belongs to {spec.owner}, and this is {owner.hotkey}: give --wallet-path")
    target = BucketPlace(config.endpoint, config.bucket, config.prefix)
    committed = with_chain(where, None, lambda port: find_run(port, where.netuid))
    entry = StorageMoved(_source(committed, spec, place, target), target, public_read=True)
    state = _move(place, S3Store(config), spec, owner, entry)
    _publish(where, keys_of_owner, spec, config)
    typer.echo(f"run {spec.run} is in {target.base_url} from slot {state.next_seq} on, and the chain says so")
    typer.echo(
        "validators go on once their storage files name the new bucket and its keys; miners follow by themselves"
    )
    typer.echo("keep the old bucket for a while: who was away learns there, or from the chain, where the run has gone")


def _source(committed: RunLocation, spec: RunSpec, place: Place, target: BucketPlace) -> BucketPlace:
    """Where the run is, as the chain or its log has it. OperatorError when the chain has another run."""
    if (committed.run, committed.spec_sha256) != (spec.run, spec_hash(spec)):
        raise OperatorError(f"the chain has run {committed.run} with another spec: this is the wrong subnet or folder")
    now = BucketPlace(committed.endpoint, committed.bucket, committed.prefix)
    if now != target:
        return now
    moved = place.log().catch_up().moved
    if moved is None or moved.target != target:
        raise OperatorError(f"run {spec.run} is in {target.base_url} already")
    return moved.source


def _move(place: Place, new: S3Store, spec: RunSpec, owner: KeypairSigner, entry: StorageMoved) -> RunState:
    state = LogReader(place.reader, spec, lambda: entry.source).catch_up()
    problem = "" if state.left(entry.source) else move_problem(state, entry)
    if problem:
        raise OperatorError(f"--to: {problem}")
    probe_bucket(new, secrets.token_hex(8))
    old, clock = place.listing_store(), SystemClock()

    def append(before: RunState, data: StorageMoved) -> RunState:
        _check_public(new, spec, entry.target)
        writer = LogWriter(old, spec, owner, clock, here=lambda: entry.source)
        return append_owned(writer, before, data, "the owner moves the run to another bucket")

    http = HttpClient()
    try:
        buckets = Buckets(old, new, spec, lambda put, body: upload(put.url, put.headers, body, http=http))
        return move_run(buckets, entry, append, lambda: time.sleep(SETTLE_S), typer.echo)
    finally:
        http.close()


def _check_public(new: S3Store, spec: RunSpec, target: BucketPlace) -> None:
    """Miners read by plain GET. OperatorError unless they can."""
    try:
        new.allow_public_reads()
    except Rejected as refusal:
        typer.echo(f"this service's buckets are made public by hand: {refusal.message}")
    try:
        HttpReader(target.base_url).fetch(keys.spec_key(spec.run), max_bytes=MAX_SPEC_BYTES, sha256=spec_hash(spec))
    except RemoteError as fault:
        raise OperatorError(f"{target.base_url} can't be read by plain GET, which miners need: {fault}") from fault


def _publish(where: ChainPlace, owner: Wallet, spec: RunSpec, config: StorageConfig) -> None:
    location = location_of(spec, config)

    async def commit(port: ChainPort) -> None:
        await publish(port, where.netuid, spec.owner, location, typer.echo)

    with_chain(where, owner, commit)
