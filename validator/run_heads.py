"""What the chain says of a run that somebody proves: the heads that validators committed, and the spec's hash.

Read before the log is, so that a run that goes on meanwhile still holds every head. Asked are all who may or might
lead, as the log has it, and whoever has a validator's permit: owner and leader together can rewrite the log, but not
what the others have committed.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from common.chain.discovery import find_run
from common.chain.heads import read_heads
from common.chain.port import ChainPort
from common.chain.wallets import Wallet
from common.errors import OperatorError, RemoteError
from common.ports import is_free
from common.runlog.headproof import Heads, ProvedTail
from common.units import Sha256
from validator.run_place import DEFAULT_FOLDER, Asked, Place, netuid_of
from validator.up.folder import Folder
from validator.up.plan import LOOPBACK, SERVERS, chain_url
from validator.up.ports import kept_ports

T = TypeVar("T")


@dataclass(frozen=True)
class ChainPlace:
    """A subnet on a chain."""

    url: str
    netuid: int


def chain_of(asked: Asked, url: str | None, netuid: int | None) -> ChainPlace | None:
    """The chain that the command line names, or that of a folder whose `brigade up` runs now; else None."""
    if (url is None) != (netuid is None):
        raise OperatorError("--chain and --netuid go together")
    if url is not None and netuid is not None:
        return ChainPlace(url, netuid)
    if asked.endpoint is not None or asked.bucket is not None:
        return None
    folder = Folder(asked.folder or DEFAULT_FOLDER)
    known, ports = netuid_of(folder.run), kept_ports(folder.ports)
    if known is None or not SERVERS.keys() <= ports.keys() or is_free(ports["chain"], LOOPBACK):
        return None
    return ChainPlace(chain_url(ports), known)


def ask_chain(where: ChainPlace, place: Place) -> tuple[Heads, Place]:
    """The heads of the run, and the place with the spec's hash as the owner committed it. Blocking.

    Raises as ``ChainPort``, and as reading the log does.
    """

    async def ask(chain: ChainPort) -> tuple[Heads, Place]:
        committed = place.spec_sha256 or await _spec_sha256(chain, where.netuid, place.run)
        known = replace(place, spec_sha256=committed)
        return await heads_of(chain, where.netuid, known), known

    return with_chain(where, None, ask)


def with_chain(where: ChainPlace, wallet: Wallet | None, work: Callable[[ChainPort], Awaitable[T]]) -> T:
    """The result of ``work`` on a connection of its own. Blocking; raises as ``ChainPort``."""
    from common.chain.sdk import SdkChain, isolate_sdk  # takes half a second, which other commands need not wait for

    async def run() -> T:
        chain = SdkChain(where.url, wallet)
        try:
            return await work(chain)
        finally:
            await chain.close()

    with tempfile.TemporaryDirectory() as scratch:
        before = dict(os.environ)
        isolate_sdk(Path(scratch))
        try:
            return asyncio.run(run())
        finally:
            os.environ.clear()
            os.environ.update(before)


async def heads_of(chain: ChainPort, netuid: int, place: Place) -> Heads:
    """The heads of everybody who may know. Raises as ``ChainPort`` and as ``LogReader``."""
    state = place.log().catch_up()
    graph = await chain.metagraph(netuid)
    permitted = {neuron.hotkey for neuron in graph.neurons if neuron.validator_permit}
    return await read_heads(chain, netuid, place.run, state.ever_validators | permitted)


async def _spec_sha256(chain: ChainPort, netuid: int, run: str) -> Sha256 | None:
    """What the subnet's owner committed, if that is this run; the genesis vouches for any other."""
    try:
        location = await find_run(chain, netuid)
    except RemoteError:
        return None
    return location.spec_sha256 if location.run == run else None


def told(tail: ProvedTail | None, last_seq: int) -> str:
    """Up to which slot the log is proved, in a line."""
    if tail is None or tail.heads == 0:
        asked = "no validator has committed a head" if tail else "give --chain and --netuid"
        return (
            f"that the log ends at slot {last_seq} is not proved: a tail cut off together with all that follows from "
            f"it, or a history rewritten by owner and leader, shows only against a head committed on chain ({asked})"
        )
    rest = "" if tail.seq == last_seq else f"; slots {tail.seq + 1} to {last_seq} are newer than every head"
    return (
        f"the log is proved up to slot {tail.seq} by heads on chain: {tail.heads} compared, the last one of "
        f"{', '.join(tail.by)}{rest}"
    )
