"""The chain of a local run: wallets, subnet, settings, registrations and stake. Idempotent.

Everything is read before it is written, so the same call on a second start in the same folder changes nothing, and a
start that was cut off is continued. Money comes from //Alice, whom every development chain funds and trusts as sudo.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from common.chain.port import RAO_PER_TAO, ChainPort
from common.chain.wallets import DevWallet, Wallet, dev_wallet, ensure_wallet
from common.errors import Rejected, SetupError
from common.units import Hotkey

TEMPO_BLOCKS = 20
WEIGHTS_RATE_LIMIT_BLOCKS = 10
OWNER_TAO = 5000.0
"""A subnet costs 1,000 TAO or more."""
VALIDATOR_TAO = 1200.0
STAKE_TAO = 1000.0
MINER_TAO = 10.0
LARGEST_GAP = 4
"""So many numbers in a row without a subnet: there are no more."""

Connect = Callable[[Wallet | DevWallet | None], ChainPort]
Say = Callable[[str], None]
T = TypeVar("T")


@dataclass(frozen=True)
class Wallets:
    """The wallets of a local run."""

    owner: Wallet
    validator: Wallet
    miners: tuple[Wallet, ...]
    standbys: tuple[Wallet, ...] = ()
    """Further validators, that take over when the first one is gone."""

    @property
    def validators(self) -> tuple[Wallet, ...]:
        """All that may lead."""
        return (self.validator, *self.standbys)

    def names(self) -> dict[Hotkey, str]:
        """Hotkey → wallet name of each miner."""
        return {wallet.hotkey_ss58: wallet.name for wallet in self.miners}


def make_wallets(path: Path, miners: int, validators: int = 1) -> Wallets:
    """Open or make the wallets: owner, validator, validator-2 …, miner-1 …, each with the hotkey ``default``."""
    return Wallets(
        ensure_wallet(path, "owner"),
        ensure_wallet(path, "validator"),
        tuple(ensure_wallet(path, f"miner-{number}") for number in range(1, miners + 1)),
        tuple(ensure_wallet(path, f"validator-{number}") for number in range(2, validators + 1)),
    )


async def bootstrap(connect: Connect, wallets: Wallets, say: Say) -> int:
    """Make the chain ready for a run and return the netuid."""
    alice = connect(dev_wallet("//Alice"))
    owner = connect(wallets.owner)
    try:
        await _fund(alice, wallets, say)
        netuid = await _own_subnet(owner, wallets.owner.hotkey_ss58)
        if netuid is None:
            netuid = await owner.register_subnet()
            say(f"subnet {netuid} created")
        await _configure(alice, owner, netuid)
        await _register(connect, netuid, [*wallets.validators, *wallets.miners], say)
        for validator in wallets.validators:
            await _stake(connect, netuid, validator, say)
        return netuid
    finally:
        await alice.close()
        await owner.close()


async def _fund(alice: ChainPort, wallets: Wallets, say: Say) -> None:
    wanted = [(wallets.owner, OWNER_TAO), *((one, VALIDATOR_TAO) for one in wallets.validators)]
    wanted += [(wallet, MINER_TAO) for wallet in wallets.miners]
    for wallet, amount_tao in wanted:
        if await alice.balance_rao(wallet.coldkey_ss58) == 0:
            await alice.transfer(wallet.coldkey_ss58, amount_tao)
            say(f"{wallet.name} has {amount_tao:g} TAO")


async def _own_subnet(chain: ChainPort, owner: Hotkey) -> int | None:
    """The subnet that we made in an earlier start, if there is one."""
    netuid = misses = 0
    while misses < LARGEST_GAP:
        netuid += 1
        try:
            if await chain.subnet_owner_hotkey(netuid) == owner:
                return netuid
            misses = 0
        except Rejected as error:
            if error.code != "subnet_not_exists":
                raise
            misses += 1
    return None


async def _configure(alice: ChainPort, owner: ChainPort, netuid: int) -> None:
    now = await alice.hyperparameters(netuid)
    if (now.tempo, now.weights_rate_limit_blocks, now.commit_reveal) != (
        TEMPO_BLOCKS,
        WEIGHTS_RATE_LIMIT_BLOCKS,
        False,
    ):
        await alice.set_hyperparameters(
            netuid,
            tempo=TEMPO_BLOCKS,
            weights_rate_limit_blocks=WEIGHTS_RATE_LIMIT_BLOCKS,
            commit_reveal=False,
            serving_rate_limit_blocks=0,  # a restarted validator publishes its address at once
        )
    try:
        await owner.start_subnet(netuid)
    except Rejected as error:
        if "FirstEmissionBlockNumberAlreadySet" not in error.message:  # started in an earlier start
            raise


async def _register(connect: Connect, netuid: int, wallets: Sequence[Wallet], say: Say) -> None:
    chain = connect(None)
    try:
        seats = await chain.metagraph(netuid)
    finally:
        await chain.close()
    missing = [wallet for wallet in wallets if seats.by_hotkey(wallet.hotkey_ss58) is None]
    for wallet in missing:  # one after the other, so that uids follow the names
        own = connect(wallet)
        try:
            await own.register(netuid)
            say(f"{wallet.name} is registered")
        finally:
            await own.close()


async def _stake(connect: Connect, netuid: int, validator: Wallet, say: Say) -> None:
    """Give the validator stake, so that the next epoch gives it a permit."""
    chain = connect(validator)
    try:
        seat = (await chain.metagraph(netuid)).by_hotkey(validator.hotkey_ss58)
        if seat is None:
            raise SetupError("the chain forgot the validator's registration; delete the folder and start anew")
        if seat.stake_rao < STAKE_TAO / 2 * RAO_PER_TAO:
            await chain.add_stake(netuid, validator.hotkey_ss58, STAKE_TAO)
            say(f"the validator has {STAKE_TAO:g} TAO at stake")
    finally:
        await chain.close()


def ask(chain: ChainPort, work: Callable[[ChainPort], Awaitable[T]]) -> T:
    """Do one thing with a connection of its own, for callers without an event loop."""

    async def run() -> T:
        try:
            return await work(chain)
        finally:
            await chain.close()

    return asyncio.run(run())
