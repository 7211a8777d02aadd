"""A chain in memory for tests: the same port, the same refusals, no network; its clock only stamps blocks.

Every write makes a block. Waiting for a block makes blocks until it is there (``auto_advance``), or waits for
somebody else's ``advance``. Faults can be injected: ``world.fail_next`` makes the next call of a method raise.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from common.chain.port import (
    MAX_COMMITMENT_FIELD_BYTES,
    MAX_COMMITMENT_FIELDS,
    RAO_PER_TAO,
    Endpoint,
    Hyperparameters,
    Metagraph,
    Neuron,
    check_endpoint,
    rao,
)
from common.chain.weights import check_vector
from common.errors import BrigadeError, Rejected, Retryable
from common.units import Coldkey, Hotkey, Uid

REGISTRATION_RAO = RAO_PER_TAO // 10
SUBNET_RAO = 1000 * RAO_PER_TAO
MIN_STAKE_RAO = 2_000_000
NEW_SUBNET = Hyperparameters(
    tempo=10,
    weights_rate_limit_blocks=100,
    version_key=0,
    min_allowed_weights=1,
    max_weight_u16=65535,
    commit_reveal=True,
)
SERVING_RATE_LIMIT_BLOCKS = 50


class Addresses(Protocol):
    """What the memory chain needs of a wallet: its public addresses."""

    @property
    def hotkey_ss58(self) -> Hotkey: ...

    @property
    def coldkey_ss58(self) -> Coldkey: ...


@dataclass(frozen=True)
class MemoryWallet:
    """Addresses without keys."""

    hotkey_ss58: Hotkey
    coldkey_ss58: Coldkey


@dataclass
class Subnet:
    """One subnet's state."""

    owner: Coldkey
    owner_hotkey: Hotkey
    last_epoch_block: int
    settings: Hyperparameters = NEW_SUBNET
    serving_rate_limit_blocks: int = SERVING_RATE_LIMIT_BLOCKS
    started: bool = False
    neurons: list[Neuron] = field(default_factory=list)
    weights: dict[Uid, dict[Uid, int]] = field(default_factory=dict)
    commitments: dict[Hotkey, tuple[bytes, ...]] = field(default_factory=dict)
    served_blocks: dict[Hotkey, int] = field(default_factory=dict)


class MemoryWorld:
    """The state that all ports of one test share. ``sudo`` may change settings and has money."""

    def __init__(self, sudo: Coldkey, *, auto_advance: bool = True, now_s: Callable[[], float] = time.time) -> None:
        self.block = 1
        self.now_s = now_s
        self.sudo = sudo
        self.auto_advance = auto_advance
        self.stake_threshold_rao = 0
        self.balances_rao: dict[Coldkey, int] = {sudo: 1_000_000 * RAO_PER_TAO}
        self.subnets: dict[int, Subnet] = {}
        self.fail_next: dict[str, list[BrigadeError]] = {}
        self._moved = asyncio.Condition()

    def port(self, wallet: Addresses | None = None) -> MemoryChain:
        """A connection that signs with ``wallet``."""
        return MemoryChain(self, wallet)

    def subnet(self, netuid: int) -> Subnet:
        """The subnet, or ``Rejected``."""
        found = self.subnets.get(netuid)
        if found is None:
            raise Rejected("subnet_not_exists", f"SubnetNotExists: there is no subnet {netuid}")
        return found

    async def advance(self, blocks: int = 1) -> None:
        """Make blocks, with the epochs that are due."""
        for _ in range(blocks):
            self.block += 1
            for subnet in self.subnets.values():
                if self.block >= subnet.last_epoch_block + subnet.settings.tempo:
                    _run_epoch(subnet, self.block)
        async with self._moved:
            self._moved.notify_all()

    async def reached(self, number: int) -> None:
        """Return once the head is at ``number``."""
        async with self._moved:
            await self._moved.wait_for(lambda: self.block >= number)

    def pay(self, coldkey: Coldkey, amount_rao: int, error: str) -> None:
        """Take from a balance, or refuse."""
        if self.balances_rao.get(coldkey, 0) <= amount_rao:
            raise Rejected("insufficient_balance", f"{error}: {coldkey} has too little")
        self.balances_rao[coldkey] -= amount_rao

    def trip(self, method: str) -> None:
        """Raise the fault that a test has put here."""
        faults = self.fail_next.get(method)
        if faults:
            raise faults.pop(0)


class MemoryChain:
    """A ``ChainPort`` on a ``MemoryWorld``."""

    def __init__(self, world: MemoryWorld, wallet: Addresses | None) -> None:
        self.world = world
        self._wallet = wallet

    # -- reads -----------------------------------------------------------------------------------------------

    async def block(self) -> int:
        """See ``ChainPort``."""
        self.world.trip("block")
        return self.world.block

    async def block_time_s(self) -> float:
        """See ``ChainPort``. A block of this chain is made whenever somebody looks."""
        self.world.trip("block_time_s")
        return self.world.now_s()

    async def finalized_hash(self, number: int) -> str | None:
        """See ``ChainPort``. Blocks are final when they are made."""
        self.world.trip("finalized_hash")
        return f"0x{number:064x}" if number <= self.world.block else None

    async def genesis_hash(self) -> str:
        """See ``ChainPort``."""
        return "0x" + "6d" * 32

    async def metagraph(self, netuid: int) -> Metagraph:
        """See ``ChainPort``."""
        self.world.trip("metagraph")
        return Metagraph(netuid, self.world.block, tuple(self.world.subnet(netuid).neurons))

    async def subnet_owner_hotkey(self, netuid: int) -> Hotkey:
        """See ``ChainPort``."""
        self.world.trip("subnet_owner_hotkey")
        return self.world.subnet(netuid).owner_hotkey

    async def hyperparameters(self, netuid: int) -> Hyperparameters:
        """See ``ChainPort``."""
        self.world.trip("hyperparameters")
        return self.world.subnet(netuid).settings

    async def commitment(self, netuid: int, hotkey: Hotkey) -> tuple[bytes, ...] | None:
        """See ``ChainPort``."""
        self.world.trip("commitment")
        return self.world.subnet(netuid).commitments.get(hotkey)

    async def weights(self, netuid: int) -> dict[Uid, dict[Uid, int]]:
        """See ``ChainPort``."""
        self.world.trip("weights")
        return {uid: dict(row) for uid, row in sorted(self.world.subnet(netuid).weights.items())}

    async def blocks_since_epoch(self, netuid: int) -> int:
        """See ``ChainPort``."""
        return self.world.block - self.world.subnet(netuid).last_epoch_block

    async def next_epoch_block(self, netuid: int) -> int:
        """See ``ChainPort``."""
        subnet = self.world.subnet(netuid)
        return subnet.last_epoch_block + subnet.settings.tempo

    async def balance_rao(self, coldkey: Coldkey) -> int:
        """See ``ChainPort``."""
        return self.world.balances_rao.get(coldkey, 0)

    async def wait_for_block(self, number: int, timeout_s: float) -> int:
        """See ``ChainPort``."""
        self.world.trip("wait_for_block")
        if self.world.auto_advance:
            await self.world.advance(max(0, number - self.world.block))
        try:
            async with asyncio.timeout(timeout_s):
                await self.world.reached(number)
        except TimeoutError:
            raise Retryable(f"the chain did not reach block {number} in {timeout_s:g} s") from None
        return self.world.block

    async def close(self) -> None:
        """Nothing to let go of."""

    # -- writes ----------------------------------------------------------------------------------------------

    async def set_commitment(self, netuid: int, fields: Sequence[bytes]) -> None:
        """See ``ChainPort``."""
        hotkey = self._begin("set_commitment").hotkey_ss58
        sizes = [len(item) for item in fields]
        if not 1 <= len(sizes) <= MAX_COMMITMENT_FIELDS or max(sizes) > MAX_COMMITMENT_FIELD_BYTES:
            raise Rejected("invalid_argument", f"a commitment has 1 to 3 fields of at most 128 bytes, not {sizes}")
        subnet = self.world.subnets.get(netuid)
        if subnet is None or _find(subnet, hotkey) is None:
            raise Rejected("not_authorized", "AccountNotAllowedCommit: the hotkey is not registered")
        subnet.commitments[hotkey] = tuple(bytes(item) for item in fields)
        await self.world.advance()

    async def serve(self, netuid: int, endpoint: Endpoint) -> None:
        """See ``ChainPort``."""
        hotkey = self._begin("serve").hotkey_ss58
        check_endpoint(endpoint)
        subnet = self.world.subnets.get(netuid)
        seat = _find(subnet, hotkey) if subnet else None
        if subnet is None or seat is None:
            raise Rejected("not_registered", "HotKeyNotRegisteredInNetwork: register the hotkey first")
        if endpoint.ip in ("127.0.0.1", "::1"):
            raise Rejected("invalid_argument", f"InvalidIpAddress: {endpoint.ip}")
        last, limit = subnet.served_blocks.get(hotkey), subnet.serving_rate_limit_blocks
        if last is not None and self.world.block + 1 - last < limit:
            raise Rejected("rate_limited", f"ServingRateLimitExceeded: once in {limit} blocks")
        await self.world.advance()
        subnet.served_blocks[hotkey] = self.world.block
        _replace(subnet, replace(subnet.neurons[seat.uid], endpoint=endpoint))

    async def set_weights(self, netuid: int, weights: Mapping[Uid, int], version_key: int) -> None:
        """See ``ChainPort``."""
        hotkey = self._begin("set_weights").hotkey_ss58
        check_vector(weights)
        subnet = self.world.subnet(netuid)
        seat = _check_weights(self.world, subnet, hotkey, weights, version_key)
        await self.world.advance()
        subnet.weights[seat.uid] = dict(weights)
        _replace(subnet, replace(subnet.neurons[seat.uid], last_update_block=self.world.block))

    async def register_subnet(self) -> int:
        """See ``ChainPort``."""
        wallet = self._begin("register_subnet")
        self.world.pay(wallet.coldkey_ss58, SUBNET_RAO, "CannotAffordLockCost")
        await self.world.advance()
        netuid = max(self.world.subnets, default=1) + 1
        subnet = Subnet(wallet.coldkey_ss58, wallet.hotkey_ss58, last_epoch_block=self.world.block)
        self.world.subnets[netuid] = subnet
        _seat(subnet, wallet, self.world.block)
        return netuid

    async def start_subnet(self, netuid: int) -> None:
        """See ``ChainPort``."""
        wallet = self._begin("start_subnet")
        subnet = self.world.subnet(netuid)
        if subnet.owner != wallet.coldkey_ss58:
            raise Rejected("not_authorized", "NotSubnetOwner: only the owner starts a subnet")
        if subnet.started:
            raise Rejected("already_exists", "FirstEmissionBlockNumberAlreadySet: the subnet has started")
        subnet.started = True
        await self.world.advance()

    async def register(self, netuid: int) -> None:
        """See ``ChainPort``."""
        wallet = self._begin("register")
        subnet = self.world.subnet(netuid)
        if _find(subnet, wallet.hotkey_ss58) is not None:
            raise Rejected("already_exists", "HotKeyAlreadyRegisteredInSubNet: the hotkey has a uid")
        self.world.pay(wallet.coldkey_ss58, REGISTRATION_RAO, "NotEnoughBalanceToStake")
        await self.world.advance()
        _seat(subnet, wallet, self.world.block)

    async def add_stake(self, netuid: int, hotkey: Hotkey, amount_tao: float) -> None:
        """See ``ChainPort``."""
        coldkey, amount_rao = self._begin("add_stake").coldkey_ss58, rao(amount_tao)
        subnet = self.world.subnet(netuid)
        if not subnet.started:
            raise Rejected("subtoken_disabled", "SubtokenDisabled: the subnet has not started")
        seat = _find(subnet, hotkey)
        if seat is None:
            raise Rejected("not_registered", "HotKeyAccountNotExists: nobody owns this hotkey")
        if amount_rao < MIN_STAKE_RAO:
            raise Rejected("limit_exceeded", "AmountTooLow: stake more")
        self.world.pay(coldkey, amount_rao, "NotEnoughBalanceToStake")
        await self.world.advance()
        _replace(subnet, replace(subnet.neurons[seat.uid], stake_rao=seat.stake_rao + amount_rao))

    async def transfer(self, dest: Coldkey, amount_tao: float) -> None:
        """See ``ChainPort``."""
        amount_rao = rao(amount_tao)
        self.world.pay(self._begin("transfer").coldkey_ss58, amount_rao, "FundsUnavailable")
        self.world.balances_rao[dest] = self.world.balances_rao.get(dest, 0) + amount_rao
        await self.world.advance()

    async def set_hyperparameters(
        self,
        netuid: int,
        *,
        tempo: int | None = None,
        weights_rate_limit_blocks: int | None = None,
        commit_reveal: bool | None = None,
        serving_rate_limit_blocks: int | None = None,
        stake_threshold_rao: int | None = None,
    ) -> None:
        """See ``ChainPort``."""
        if self._begin("set_hyperparameters").coldkey_ss58 != self.world.sudo:
            raise Rejected("not_authorized", "RequireSudo: only the sudo account sets these")
        subnet = self.world.subnet(netuid)
        changes = {
            "tempo": tempo,
            "weights_rate_limit_blocks": weights_rate_limit_blocks,
            "commit_reveal": commit_reveal,
        }
        given = {name: value for name, value in changes.items() if value is not None}
        subnet.settings = replace(subnet.settings, **given)  # type: ignore[arg-type]  # the names fix the types
        if serving_rate_limit_blocks is not None:
            subnet.serving_rate_limit_blocks = serving_rate_limit_blocks
        if stake_threshold_rao is not None:
            self.world.stake_threshold_rao = stake_threshold_rao
        await self.world.advance()

    def _begin(self, method: str) -> Addresses:
        """The wallet of a write, or the fault that a test injected."""
        self.world.trip(method)
        if self._wallet is None:
            raise Rejected("not_authorized", "this connection has no wallet to sign with")
        return self._wallet


def _find(subnet: Subnet, hotkey: Hotkey) -> Neuron | None:
    return next((neuron for neuron in subnet.neurons if neuron.hotkey == hotkey), None)


def _replace(subnet: Subnet, neuron: Neuron) -> None:
    subnet.neurons[neuron.uid] = neuron


def _seat(subnet: Subnet, wallet: Addresses, block: int) -> None:
    subnet.neurons.append(
        Neuron(
            uid=Uid(len(subnet.neurons)),
            hotkey=wallet.hotkey_ss58,
            coldkey=wallet.coldkey_ss58,
            registered_block=block,
            validator_permit=False,
            active=True,
            stake_rao=0,
            incentive=0.0,
            last_update_block=block,
            endpoint=None,
        )
    )


def _check_weights(
    world: MemoryWorld, subnet: Subnet, hotkey: Hotkey, weights: Mapping[Uid, int], version_key: int
) -> Neuron:
    """The chain's checks, in its order. Returns the sender's seat."""
    if subnet.settings.commit_reveal:
        raise Rejected("disabled", "CommitRevealEnabled: switch commit-reveal off for the memory chain")
    if len(weights) > len(subnet.neurons):
        raise Rejected("limit_exceeded", "UidsLengthExceedUidsInSubNet: more weights than seats")
    seat = _find(subnet, hotkey)
    if seat is None:
        raise Rejected("not_registered", "HotKeyNotRegisteredInSubNet: register the hotkey first")
    if seat.stake_rao < world.stake_threshold_rao:
        raise Rejected("insufficient_balance", "NotEnoughStakeToSetWeights: stake more")
    if version_key < subnet.settings.version_key:
        raise Rejected("invalid_argument", f"IncorrectWeightVersionKey: {version_key}")
    limit = subnet.settings.weights_rate_limit_blocks
    if world.block + 1 - seat.last_update_block < limit:
        raise Rejected("rate_limited", f"SettingWeightsTooFast: once in {limit} blocks")
    if list(weights) != [seat.uid] and not seat.validator_permit:
        raise Rejected("not_authorized", "NeuronNoValidatorPermit: wait for an epoch with stake")
    if any(uid >= len(subnet.neurons) for uid in weights):
        raise Rejected("invalid_argument", "UidVecContainInvalidOne: a uid is not taken")
    if list(weights) != [seat.uid] and len(weights) < subnet.settings.min_allowed_weights:
        raise Rejected("invalid_argument", "WeightVecLengthIsLow: set more weights")
    return seat


def _run_epoch(subnet: Subnet, block: int) -> None:
    """Permits to all with stake; incentive by stake-weighted weights."""
    subnet.last_epoch_block = block
    earned = [0.0] * len(subnet.neurons)
    for uid, row in sorted(subnet.weights.items()):
        others = {to: value for to, value in row.items() if to != uid}
        for to, value in others.items():
            earned[to] += subnet.neurons[uid].stake_rao * value / sum(others.values())
    whole = sum(earned) or 1.0
    subnet.neurons = [
        replace(neuron, validator_permit=neuron.stake_rao > 0, incentive=earned[neuron.uid] / whole)
        for neuron in subnet.neurons
    ]
