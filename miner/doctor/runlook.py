"""The doctor's look at a subnet's run: wallet, chain, storage, validators and the links to them, each within its time.

What fails leaves its trouble and does not stop what does not depend on it. Nothing is registered, paid for or written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

from common.blocking import in_thread
from common.chain.commitment import RunLocation
from common.chain.discovery import base_url, find_run
from common.chain.port import ChainPort, Metagraph
from common.chain.wallets import new_key, open_wallet
from common.data.index import DatasetIndex
from common.errors import OperatorError, Rejected, RemoteError, SetupError
from common.identity import KeypairSigner
from common.spec import RunSpec, spec_hash
from common.units import Hotkey, Uid, format_duration
from miner.client import ValidatorClient
from miner.doctor.choices import Ports, Settings
from miner.doctor.facts import ClockReading, Facts, Link, Remote, Trouble, ValidatorSeen
from miner.doctor.links import measure_uplink
from miner.doctor.machinelines import shard_of
from miner.doctor.storage import LogSeen, RunStorage
from miner.places import endpoint_url

T = TypeVar("T")
BLOCK_GRAIN_S = 60.0
"""A block's stamp is as old as the block, and chains halt for a moment now and then."""
MOST_VALIDATORS = 8
NETWORK_DO = "is the address right, and does a firewall stand between?"


def _sound(spec: RunSpec) -> RunSpec:
    """The spec, if its model can be split as it says. Raises ``Rejected``: it is a stranger's."""
    try:
        shard_of(spec)
    except OperatorError as error:
        raise Rejected("bad_spec", f"the run's spec contradicts itself: {error}") from error
    return spec


class RunLook:
    """One look at the run of a subnet."""

    def __init__(self, settings: Settings, ports: Ports, chain: ChainPort, netuid: int) -> None:
        self._settings = settings
        self._ports = ports
        self._chain = chain
        self._netuid = netuid
        self._clocks: list[ClockReading] = []

    async def look(self, facts: Facts) -> Facts:
        """``facts`` with the spec and all that is remote. Raises ``OperatorError`` for a wallet's name that is none."""
        signer = self._wallet()
        wallet = signer if isinstance(signer, Trouble) else signer.hotkey
        remote = Remote(wallet, await self._try("the chain", self._chain.block()))
        if isinstance(remote.chain, Trouble):
            return replace(facts, remote=remote)
        graph, location, _ = await asyncio.gather(
            self._try("the chain", self._chain.metagraph(self._netuid)),
            self._try("the chain", find_run(self._chain, self._netuid)),
            self._chain_clock(),
        )
        run = location if isinstance(location, Trouble) else base_url(location)
        remote = replace(remote, seat=self._seat(wallet, graph), run=run)
        if isinstance(location, RunLocation):
            facts, remote = await self._look_inside(facts, remote, location, graph, signer)
        return replace(facts, remote=replace(remote, clocks=tuple(self._clocks)))

    def _wallet(self) -> KeypairSigner | Trouble:
        chosen = self._settings
        try:
            key = open_wallet(chosen.wallets, chosen.wallet, chosen.hotkey).hotkey
        except SetupError as error:
            return Trouble(str(error), "name it with --wallet, --hotkey and --wallet-path, or make one with btcli")
        try:
            return KeypairSigner(key)
        except ValueError as error:
            return Trouble(f"hotkey {key.ss58_address}: {error}", "make another hotkey with btcli")

    def _seat(self, wallet: Hotkey | Trouble, graph: Metagraph | Trouble) -> Uid | Trouble | None:
        if isinstance(graph, Trouble):
            return graph
        if isinstance(wallet, Trouble):
            return None
        neuron = graph.by_hotkey(wallet)
        if neuron is None:
            said = f"hotkey {wallet} has no seat on subnet {self._netuid}"
            return Trouble(said, "register it first (btcli subnets register)")
        return neuron.uid

    async def _chain_clock(self) -> None:
        stamp_s = await self._try("the chain", self._chain.block_time_s())
        if not isinstance(stamp_s, Trouble):
            ahead_s = self._ports.clock.wall_ns() / 1e9 - stamp_s
            self._clocks.append(ClockReading("the chain", ahead_s, BLOCK_GRAIN_S))

    async def _look_inside(
        self,
        facts: Facts,
        remote: Remote,
        location: RunLocation,
        graph: Metagraph | Trouble,
        signer: KeypairSigner | Trouble,
    ) -> tuple[Facts, Remote]:
        limits = self._ports.limits
        storage = RunStorage(location, self._ports.clock, limits.look_s / 2, limits.down)
        try:
            why = await self._refused(storage, location)
            if why is not None:
                return facts, replace(remote, run=why)
            spec = await self._read("the spec", lambda: _sound(storage.spec()))
            if isinstance(spec, Trouble):
                return facts, replace(remote, run=replace(spec, text=f"{remote.run}: {spec.text}"))
            seen, index = await self._read("the log", lambda: storage.log(spec)), await self._index(storage, spec)
            down = await self._downlink(storage, spec, index)
        finally:
            storage.close()
        validators = await self._validators(spec, seen, graph, signer)
        size_bytes = None if isinstance(index, Trouble) else sum(index.size_bytes(file) for file in index.files)
        head = seen if isinstance(seen, Trouble) else seen.head
        found = replace(remote, head=head, downlink=down, validators=validators)
        if not isinstance(signer, Trouble) and isinstance(remote.seat, int):
            found = replace(found, uplink=await self._uplink(validators, signer))
        return replace(facts, spec=spec, dataset_bytes=size_bytes), found

    async def _uplink(self, validators: tuple[ValidatorSeen, ...], signer: KeypairSigner) -> Link | None:
        """Through the first validator that answers, which is the leader if it does."""
        good = next((one for one in validators if one.trouble is None), None)
        if good is None:
            return None
        client = ValidatorClient(good.url, good.hotkey, signer, self._ports.clock)
        try:
            return await measure_uplink(client)
        finally:
            await client.retire()

    async def _refused(self, storage: RunStorage, location: RunLocation) -> Trouble | None:
        """Why a miner would not read there; else its clock is looked at."""
        if not location.public_read:
            return Trouble(f"the bucket of run {location.run} can't be read by plain GET, which this version needs")
        if not self._settings.allow_private:
            private = await self._read("the storage", storage.check_public)
            if private is not None:
                return private
        reading = await self._read("the storage's clock", storage.clock)
        if isinstance(reading, ClockReading):
            self._clocks.append(reading)
        return None

    async def _index(self, storage: RunStorage, spec: RunSpec) -> DatasetIndex | Trouble:
        return await self._read("the dataset's index", lambda: storage.index(spec))

    async def _downlink(self, storage: RunStorage, spec: RunSpec, index: DatasetIndex | Trouble) -> Link | Trouble:
        if isinstance(index, Trouble):
            return index
        return await self._read("the dataset", lambda: storage.downlink(spec, index, self._ports.clock.monotonic_s))

    async def _validators(
        self, spec: RunSpec, seen: LogSeen | Trouble, graph: Metagraph | Trouble, signer: KeypairSigner | Trouble
    ) -> tuple[ValidatorSeen, ...]:
        """The leader first."""
        if isinstance(graph, Trouble):
            return ()
        leader = None if isinstance(seen, Trouble) else seen.head.leader
        named = spec.validators if isinstance(seen, Trouble) else seen.validators
        ordered = sorted(named, key=lambda hotkey: hotkey != leader)[:MOST_VALIDATORS]
        asks = (self._validator(spec, hotkey, hotkey == leader, graph, signer) for hotkey in ordered)
        return tuple(await asyncio.gather(*asks))

    async def _validator(
        self, spec: RunSpec, hotkey: Hotkey, leads: bool, graph: Metagraph, signer: KeypairSigner | Trouble
    ) -> ValidatorSeen:
        neuron = graph.by_hotkey(hotkey)
        if neuron is None or neuron.endpoint is None:
            said = f"validator {hotkey} has published no address on the chain"
            return ValidatorSeen(hotkey, leads, "", Trouble(said, "ask the subnet's owner"))
        try:
            url = endpoint_url(neuron.endpoint, self._settings.allow_private)
        except Rejected as refusal:
            return ValidatorSeen(hotkey, leads, "", Trouble(refusal.message))
        nobody = KeypairSigner(new_key()) if isinstance(signer, Trouble) else signer
        client = ValidatorClient(url, hotkey, nobody, self._ports.clock)
        try:
            health = await self._try("the validator", client.signed_health())
        finally:
            await client.retire()
        if isinstance(health, Trouble):
            return ValidatorSeen(hotkey, leads, url, health)
        self._clocks.append(ClockReading(f"validator {hotkey[:8]}…", client.time.skew_s(), 1.0))
        if (health.run, health.spec_sha256) != (spec.run, spec_hash(spec)):
            said = f"validator {hotkey} serves run {health.run} with another spec"
            return ValidatorSeen(hotkey, leads, url, Trouble(said, "ask the subnet's owner"))
        return ValidatorSeen(hotkey, leads, url)

    async def _read(self, what: str, work: Callable[[], T]) -> T | Trouble:
        return await self._try(what, in_thread(work))

    async def _try(self, what: str, work: Awaitable[T]) -> T | Trouble:
        """What ``work`` gives, or why it gives nothing in time."""
        try:
            async with asyncio.timeout(self._ports.limits.look_s):
                return await work
        except TimeoutError:
            return Trouble(f"{what} does not answer within {format_duration(self._ports.limits.look_s)}", NETWORK_DO)
        except Rejected as refusal:
            return Trouble(refusal.message)
        except RemoteError as error:
            return Trouble(str(error), NETWORK_DO)
        except SetupError as error:
            return Trouble(str(error))
