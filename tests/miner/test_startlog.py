"""A miner starts from a log that holds what validators committed on chain, and waits for any other to heal."""

from __future__ import annotations

import asyncio

import pytest

from common import keys
from common.chain.headcommit import CommittedHead, encode
from common.errors import Retryable
from common.identity import Signer
from common.runlog.entries import NO_PREVIOUS
from common.runlog.reader import LogReader
from common.store.memory import MemoryStore
from common.store.reader import StoreReader
from common.units import Coldkey, sha256_hex
from miner.follow import LogView
from miner.startlog import first_view
from tests.runlog.support import ALICE, MINERS, OWNER, STRANGER, opened, small_spec
from tests.runlog.world import World, begin_world, copy_store
from tests.support.memchain import MemoryWallet, MemoryWorld


@pytest.fixture(scope="module")
def world() -> World:
    world = begin_world(small_spec())
    world.append(opened(world.state))
    return world


def start(world: World, store: MemoryStore, committer: Signer, head: CommittedHead) -> LogView:
    """A miner's first look while ``committer`` has this head on chain."""
    chain = MemoryWorld(Coldkey("sudo"))

    async def go() -> LogView:
        owner = MemoryWallet(OWNER.hotkey, Coldkey("owner"))
        chain.balances_rao[owner.coldkey_ss58] = 10**15
        netuid = await chain.port(owner).register_subnet()
        chain.subnet(netuid).commitments[committer.hotkey] = encode(head)
        return await first_view(LogReader(StoreReader(store), world.spec), MINERS[0].hotkey, chain.port(), netuid)

    return asyncio.run(go())


def test_a_log_that_holds_the_committed_head_is_started_from(world: World) -> None:
    for seq in range(world.state.next_seq):
        body = world.store.get(keys.log_key("tiny", seq), max_bytes=1 << 20).body
        view = start(world, world.store, ALICE, CommittedHead("tiny", seq, sha256_hex(body)))
        assert view.state == world.state


def test_a_cut_or_rewritten_log_is_not(world: World) -> None:
    last = world.state.next_seq - 1
    cut = copy_store(world.store)
    cut.delete(keys.log_key("tiny", last))
    with pytest.raises(Retryable, match="its tail was cut off"):
        start(world, cut, ALICE, CommittedHead("tiny", last, world.state.head_sha256))
    with pytest.raises(Retryable, match="rewritten"):
        start(world, world.store, ALICE, CommittedHead("tiny", 1, NO_PREVIOUS))


def test_what_a_stranger_commits_keeps_nobody_from_starting(world: World) -> None:
    assert start(world, world.store, STRANGER, CommittedHead("tiny", 99, NO_PREVIOUS)).state == world.state
