"""The chain of a local run is made ready once, and found ready from then on."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from common.chain.port import RAO_PER_TAO
from common.chain.wallets import DevWallet, Wallet, dev_wallet
from common.errors import Retryable
from tests.support.memchain import MemoryChain, MemoryWorld
from validator.up.bootstrap import STAKE_TAO, Wallets, bootstrap, make_wallets


@pytest.fixture
def wallets(tmp_path: Path) -> Wallets:
    return make_wallets(tmp_path, 2)


@pytest.fixture
def world() -> MemoryWorld:
    return MemoryWorld(dev_wallet("//Alice").coldkey_ss58)


def run(world: MemoryWorld, wallets: Wallets) -> tuple[int, list[str]]:
    said: list[str] = []

    def connect(wallet: Wallet | DevWallet | None) -> MemoryChain:
        return world.port(wallet)

    return asyncio.run(bootstrap(connect, wallets, said.append)), said


def test_everybody_has_a_seat_and_the_validator_a_permit_after_the_next_epoch(
    world: MemoryWorld, wallets: Wallets
) -> None:
    netuid, _ = run(world, wallets)
    subnet = world.subnet(netuid)
    assert subnet.owner_hotkey == wallets.owner.hotkey_ss58
    assert (subnet.settings.tempo, subnet.settings.weights_rate_limit_blocks) == (20, 10)
    assert subnet.settings.commit_reveal is False
    asyncio.run(world.advance(20))
    seats = {neuron.hotkey: neuron for neuron in subnet.neurons}
    validator = seats[wallets.validator.hotkey_ss58]
    assert validator.validator_permit
    assert validator.stake_rao == STAKE_TAO * RAO_PER_TAO
    assert [seats[miner.hotkey_ss58].uid for miner in wallets.miners] == [2, 3]


def test_a_second_start_changes_nothing(world: MemoryWorld, wallets: Wallets, tmp_path: Path) -> None:
    first, _ = run(world, wallets)
    block = world.block
    again, said = run(world, make_wallets(tmp_path, 2))
    assert again == first
    assert said == []
    assert world.block == block


def test_a_start_that_was_cut_off_is_continued(world: MemoryWorld, wallets: Wallets) -> None:
    world.fail_next["register"] = [Retryable("the chain went away")]
    with pytest.raises(Retryable):
        run(world, wallets)
    netuid, said = run(world, wallets)
    assert not any("created" in line for line in said)
    assert len(world.subnet(netuid).neurons) == 4


def test_a_miner_more_is_registered_on_a_later_start(world: MemoryWorld, wallets: Wallets, tmp_path: Path) -> None:
    netuid, _ = run(world, wallets)
    more = make_wallets(tmp_path, 3)
    assert run(world, more)[0] == netuid
    assert len(world.subnet(netuid).neurons) == 5
    assert list(more.names().values()) == ["miner-1", "miner-2", "miner-3"]
