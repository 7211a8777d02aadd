"""The chain port's contract, on the memory chain and on the SDK against the local node."""

from __future__ import annotations

import re

import pytest

from common.chain.port import Endpoint
from common.chain.wallets import DevWallet
from common.errors import Rejected, Retryable
from common.units import Uid
from tests.chain.support import Bench, async_test

TIMEOUT_S = 120.0


@async_test
async def test_a_new_subnet_has_its_owner_on_uid_0(bench: Bench) -> None:
    netuid, owner = await bench.subnet()
    graph = await bench.port().metagraph(netuid)
    assert [(n.uid, n.hotkey, n.coldkey) for n in graph.neurons] == [(0, owner.hotkey_ss58, owner.coldkey_ss58)]
    assert await bench.port().subnet_owner_hotkey(netuid) == owner.hotkey_ss58
    assert graph.by_hotkey(owner.hotkey_ss58) is graph.neurons[0]


@async_test
async def test_registered_hotkeys_get_seats_and_pay(bench: Bench) -> None:
    netuid, _ = await bench.subnet()
    miners = [await bench.funded(10) for _ in range(3)]
    for miner in miners:
        await bench.port(miner).register(netuid)
    graph = await bench.port().metagraph(netuid)
    assert [n.hotkey for n in graph.neurons[1:]] == [miner.hotkey_ss58 for miner in miners]
    blocks = [n.registered_block for n in graph.neurons]
    assert blocks == sorted(blocks)
    assert blocks[-1] <= graph.block
    assert 9 * 10**9 < await bench.port().balance_rao(miners[0].coldkey_ss58) < 10 * 10**9


@async_test
async def test_registering_twice_is_refused(bench: Bench) -> None:
    netuid, owner = await bench.subnet()
    with pytest.raises(Rejected, match="HotKeyAlreadyRegisteredInSubNet") as refused:
        await bench.port(owner).register(netuid)
    assert refused.value.code == "already_exists"


@async_test
async def test_a_poor_coldkey_is_refused(bench: Bench) -> None:
    netuid, _ = await bench.subnet()
    poor = await bench.funded(0.01)
    with pytest.raises(Rejected, match="NotEnoughBalanceToStake") as refused:
        await bench.port(poor).register(netuid)
    assert refused.value.code == "insufficient_balance"
    with pytest.raises(Rejected) as refused:
        await bench.port(poor).transfer(bench.sudo.coldkey_ss58, 5)
    assert refused.value.code == "insufficient_balance"


@async_test
async def test_an_absent_subnet_is_refused_by_name(bench: Bench) -> None:
    wallet = await bench.funded()
    port = bench.port(wallet)
    for work in (port.metagraph(999), port.hyperparameters(999), port.subnet_owner_hotkey(999), port.register(999)):
        with pytest.raises(Rejected) as refused:
            await work
        assert refused.value.code == "subnet_not_exists"


@async_test
async def test_commitments_come_back_byte_for_byte(bench: Bench) -> None:
    netuid, owner = await bench.subnet()
    port = bench.port(owner)
    assert await port.commitment(netuid, owner.hotkey_ss58) is None
    for fields in ((b"",), (b"0x41", b"\xff\x00\xfe"), (bytes(range(128)), b"plain", b"\x00" * 128)):
        await port.set_commitment(netuid, fields)
        assert await bench.port().commitment(netuid, owner.hotkey_ss58) == fields


@async_test
async def test_commitments_are_bounded_and_for_members(bench: Bench) -> None:
    netuid, owner = await bench.subnet()
    for fields in ((), (b"x" * 129,), (b"a", b"b", b"c", b"d")):
        with pytest.raises(Rejected) as refused:
            await bench.port(owner).set_commitment(netuid, fields)
        assert refused.value.code == "invalid_argument"
    stranger = await bench.funded(1)
    with pytest.raises(Rejected, match="AccountNotAllowedCommit") as refused:
        await bench.port(stranger).set_commitment(netuid, (b"x",))
    assert refused.value.code == "not_authorized"


@async_test
async def test_served_endpoints_are_seen(bench: Bench) -> None:
    netuid, owner = await bench.subnet()
    port = bench.port(owner)
    for endpoint in (Endpoint("127.0.0.2", 8091), Endpoint("fd00::1", 65535)):
        await port.serve(netuid, endpoint)
        assert (await port.metagraph(netuid)).neurons[0].endpoint == endpoint


@pytest.mark.parametrize(("ip", "port_number"), [("127.0.0.1", 80), ("::1", 80), ("10.0.0.1", 0), ("here", 80)])
@async_test
async def test_endpoints_that_no_chain_takes(bench: Bench, ip: str, port_number: int) -> None:
    netuid, owner = await bench.subnet()
    with pytest.raises(Rejected) as refused:
        await bench.port(owner).serve(netuid, Endpoint(ip, port_number))
    assert refused.value.code == "invalid_argument"


@async_test
async def test_serving_is_for_members_and_rate_limited(bench: Bench) -> None:
    netuid, owner = await bench.subnet(serving_rate_limit_blocks=1000)
    await bench.port(owner).serve(netuid, Endpoint("127.0.0.2", 1))
    with pytest.raises(Rejected, match="ServingRateLimitExceeded") as refused:
        await bench.port(owner).serve(netuid, Endpoint("127.0.0.2", 2))
    assert refused.value.code == "rate_limited"
    stranger = await bench.funded(1)
    with pytest.raises(Rejected, match="HotKeyNotRegisteredInNetwork") as refused:
        await bench.port(stranger).serve(netuid, Endpoint("127.0.0.2", 1))
    assert refused.value.code == "not_registered"


@async_test
async def test_weights_are_on_chain_exactly(bench: Bench) -> None:
    netuid, owner = await bench.subnet()
    for _ in range(3):
        await bench.port(await bench.funded(1)).register(netuid)
    port = await bench.validator(netuid, owner)
    vector = {Uid(1): 65535, Uid(2): 28086, Uid(3): 1}
    await port.set_weights(netuid, vector, version_key=0)
    assert await bench.port().weights(netuid) == {Uid(0): vector}
    await port.wait_for_block(await port.next_epoch_block(netuid), TIMEOUT_S)
    neurons = (await port.metagraph(netuid)).neurons
    assert [neuron.validator_permit for neuron in neurons] == [True, False, False, False]
    assert neurons[1].incentive > neurons[2].incentive > 0
    assert abs(sum(neuron.incentive for neuron in neurons) - 1) < 1e-3


@async_test
async def test_weights_need_registration_permit_and_patience(bench: Bench) -> None:
    netuid, owner = await bench.subnet(weights_rate_limit_blocks=0)
    miner = await bench.funded(1)
    await bench.port(miner).register(netuid)
    port = await bench.validator(netuid, owner)
    cases = [
        (await bench.funded(1), "not_registered", "HotKeyNotRegisteredInSubNet"),
        (miner, "not_authorized", "NeuronNoValidatorPermit"),
    ]
    for wallet, code, name in cases:
        await _refused(bench, wallet, netuid, code, name)
    await bench.port(bench.sudo).set_hyperparameters(netuid, weights_rate_limit_blocks=1000)
    await _refused(bench, owner, netuid, "rate_limited", "SettingWeightsTooFast")
    await bench.port(bench.sudo).set_hyperparameters(netuid, weights_rate_limit_blocks=0)
    await port.set_weights(netuid, {Uid(1): 65535}, version_key=5)


async def _refused(bench: Bench, wallet: DevWallet, netuid: int, code: str, name: str) -> None:
    with pytest.raises(Rejected, match=name) as refused:
        await bench.port(wallet).set_weights(netuid, {Uid(0): 65535}, version_key=0)
    assert refused.value.code == code


@async_test
async def test_vectors_that_the_chain_would_change_are_refused_here(bench: Bench) -> None:
    netuid, owner = await bench.subnet()
    for vector in ({}, {Uid(0): 3}, {Uid(0): 65535, Uid(1): 0}, {Uid(0): 65536}):
        with pytest.raises(ValueError, match="u16"):
            await bench.port(owner).set_weights(netuid, vector, version_key=0)


@async_test
async def test_hyperparameters_are_set_by_sudo_only(bench: Bench) -> None:
    netuid, owner = await bench.subnet(tempo=20, weights_rate_limit_blocks=10)
    found = await bench.port().hyperparameters(netuid)
    assert (found.tempo, found.weights_rate_limit_blocks, found.commit_reveal) == (20, 10, False)
    assert (found.version_key, found.min_allowed_weights, found.max_weight_u16) == (0, 1, 65535)
    with pytest.raises(Rejected, match="RequireSudo") as refused:
        await bench.port(owner).set_hyperparameters(netuid, tempo=1)
    assert refused.value.code == "not_authorized"


@async_test
async def test_stake_needs_a_started_subnet(bench: Bench) -> None:
    owner = await bench.funded()
    port = bench.port(owner)
    netuid = await port.register_subnet()
    with pytest.raises(Rejected, match="SubtokenDisabled") as refused:
        await port.add_stake(netuid, owner.hotkey_ss58, 1)
    assert refused.value.code == "subtoken_disabled"
    await port.start_subnet(netuid)
    await port.add_stake(netuid, owner.hotkey_ss58, 1)
    assert (await port.metagraph(netuid)).neurons[0].stake_rao == 10**9


@async_test
async def test_epochs_come_every_tempo(bench: Bench) -> None:
    netuid, _ = await bench.subnet(tempo=4)
    port = bench.port()
    due = await port.next_epoch_block(netuid)
    reached = await port.wait_for_block(due, TIMEOUT_S)
    assert reached >= due
    assert await port.next_epoch_block(netuid) >= due + 4
    assert await port.blocks_since_epoch(netuid) <= reached - due + 4


@async_test
async def test_a_block_has_a_hash_once_it_is_final(bench: Bench) -> None:
    port = bench.port()
    assert await port.finalized_hash(await port.block() + 10**6) is None
    reached = await port.wait_for_block(await port.block() + 2, TIMEOUT_S)
    while (found := await port.finalized_hash(reached)) is None:
        await port.wait_for_block(await port.block() + 1, TIMEOUT_S)
    assert re.fullmatch("0x[0-9a-f]{64}", found)
    assert found == await port.finalized_hash(reached)
    assert found != await port.finalized_hash(reached - 1)


@async_test
async def test_a_block_tells_when_it_was_made(bench: Bench) -> None:
    port = bench.port()
    before_s = await port.block_time_s()
    await port.wait_for_block(await port.block() + 2, TIMEOUT_S)
    assert 0 < before_s < await port.block_time_s()


@async_test
async def test_waiting_for_a_far_block_ends_as_retryable(node_bench: Bench) -> None:
    port = node_bench.port()
    with pytest.raises(Retryable, match="did not reach"):
        await port.wait_for_block(await port.block() + 10**6, timeout_s=0.2)
    await node_bench.close()


@async_test
async def test_without_a_wallet_nothing_is_signed(bench: Bench) -> None:
    with pytest.raises(Rejected) as refused:
        await bench.port().register(2)
    assert refused.value.code == "not_authorized"
