"""The SDK's own intents against the local chain, without our adapter: what a subnet's user would type."""

from __future__ import annotations

import bittensor as bt
import pytest

from common.chain.port import Endpoint
from common.chain.sdk_decode import endpoint, raw_fields, seconds
from tests.chain.support import Bench, ChainProcess, async_test


@async_test
async def test_the_sdks_own_intents_work(node_bench: Bench, chain_process: ChainProcess) -> None:
    netuid, owner = await node_bench.subnet(tempo=4)
    miner = await node_bench.funded(1)
    await node_bench.port(miner).register(netuid)
    await node_bench.validator(netuid, owner)
    await node_bench.close()
    async with bt.Client(chain_process.url) as client:
        served = await client.execute(bt.ServeAxon(netuid=netuid, ip="127.0.0.2", port=7), miner)
        assert served.success, served.message
        weighed = await client.execute(bt.SetWeights(netuid=netuid, weights={0: 0.25, 1: 1.0}), owner)
        assert weighed.success, weighed.message
        assert await client.read("weights", netuid=netuid) == {
            0: {0: pytest.approx(0.2, abs=1e-4), 1: pytest.approx(0.8, abs=1e-4)}
        }
        event = await client.wait_for_epoch(netuid, timeout=60)
        graph = await client.subnets.metagraph(netuid)
        assert graph is not None
        assert graph.neurons[1].axon == "127.0.0.2:7"
        assert graph.neurons[1].incentive == 1
        assert graph.last_step >= event.block
        refused = await client.execute(bt.AddStake(hotkey_ss58=owner.hotkey_ss58, netuid=netuid, amount_tao=1e6), miner)
        assert not refused.success
        assert refused.error.code is bt.ErrorCode.INSUFFICIENT_BALANCE


@async_test
async def test_reads_are_pinned_to_their_block(node_bench: Bench, chain_process: ChainProcess) -> None:
    netuid, owner = await node_bench.subnet()
    port = node_bench.port(owner)
    before = await port.block()
    await port.set_commitment(netuid, (b"later",))
    await node_bench.close()
    async with bt.Client(chain_process.url) as client:
        item = ("Commitments", "CommitmentOf")
        assert await client.query(item, [netuid, owner.hotkey_ss58], block=before) is None
        assert await client.query(item, [netuid, owner.hotkey_ss58]) is not None
        assert (await client.block_info(before)).number == before


def test_decoding_what_the_sdk_gives() -> None:
    assert endpoint(None) is None
    assert endpoint("10.0.0.1:80") == Endpoint("10.0.0.1", 80)
    assert endpoint("[fd00::1]:80") == Endpoint("fd00::1", 80)
    assert (seconds("2"), seconds(1.5), seconds(None), seconds("Wed, 21 Oct")) == (2.0, 1.5, None, None)
    fields = [{"Raw0": []}, "ResetBondsFlag", {"Raw2": "0x6869"}, {"BigRaw": "0x00"}, {"TimelockEncrypted": {}}]
    assert raw_fields({"info": {"fields": fields}}) == (b"", b"hi")
