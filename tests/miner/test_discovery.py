"""From the subnet's number to the run and its leader, with a chain that is now there and now not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest

from common import timeouts
from common.chain import commitment
from common.chain.discovery import base_url
from common.chain.port import Endpoint, Metagraph
from common.clock import ManualClock
from common.errors import BrigadeError, Fatal, Rejected, Retryable
from common.runlog.reader import LogReader, load_run
from common.store.memory import MemoryStore
from common.store.reader import HttpReader, StoreReader
from common.units import Coldkey, Hotkey, Revision, Sha256
from miner.discovery import LeaderLink, find_seat
from miner.follow import catch_up
from tests.miner.leader import MINER, NETUID, Leader, register
from tests.runlog.support import ALICE, BOB
from tests.runlog.world import eventful_world
from tests.support.memchain import MemoryWorld, Subnet

T = TypeVar("T")
PLACE = commitment.RunLocation(
    run="tiny", spec_sha256=Sha256("ab" * 32), endpoint="http://127.0.0.1:9", bucket="brigade", prefix="x/y",
    public_read=True,
)  # fmt: skip


def subnet_with(location: commitment.RunLocation | None = PLACE) -> MemoryWorld:
    chain = MemoryWorld(Coldkey("sudo"))
    chain.subnets[NETUID] = Subnet(Coldkey("owner"), Hotkey("owner"), last_epoch_block=0)
    if location is not None:
        chain.subnets[NETUID].commitments[Hotkey("owner")] = commitment.encode(location)
    for signer in (ALICE, BOB, MINER):
        register(chain, signer)
    serve(chain, 0, 8001)
    return chain


def serve(chain: MemoryWorld, uid: int, port: int, ip: str = "127.0.0.2") -> None:
    neurons = chain.subnets[NETUID].neurons
    neurons[uid] = replace(neurons[uid], endpoint=Endpoint(ip, port))


def test_a_miner_finds_run_spec_and_log_from_the_subnets_number(tmp_path: Path) -> None:
    with Leader(tmp_path) as leader:
        found = asyncio.run(find_seat(leader.chain.port(), NETUID, MINER.hotkey))
        reader = HttpReader(base_url(found.location))
        spec = load_run(reader, found.location.run, found.location.spec_sha256)
        assert spec == leader.spec
        view = catch_up(LogReader(reader, spec), MINER.hotkey, None)
    assert view.state == leader.world.state
    assert view.state.leader == ALICE.hotkey


def test_another_spec_than_committed_is_refused(tmp_path: Path) -> None:
    with Leader(tmp_path) as leader:
        reader = StoreReader(leader.world.store)
        with pytest.raises(Rejected, match="checksum_mismatch"):
            load_run(reader, leader.spec.run, PLACE.spec_sha256)


@pytest.mark.parametrize(
    ("chain", "kind", "text"),
    [
        (subnet_with(None), Retryable, "not committed"),
        (subnet_with(replace(PLACE, public_read=False)), Fatal, "plain GET"),
    ],
)
def test_what_is_missing_is_said(chain: MemoryWorld, kind: type[BrigadeError], text: str) -> None:
    with pytest.raises(kind, match=text):
        asyncio.run(find_seat(chain.port(), NETUID, MINER.hotkey))


def test_a_strangers_hotkey_is_told_to_register() -> None:
    with pytest.raises(Rejected, match="not_registered"):
        asyncio.run(find_seat(subnet_with().port(), NETUID, Hotkey("5Stranger")))


def linked(chain: MemoryWorld, clock: ManualClock, act: Callable[[LeaderLink], Awaitable[T]]) -> T:
    async def run() -> T:
        link = LeaderLink(chain.port(), NETUID, MINER, clock, allow_private=True)
        try:
            return await act(link)
        finally:
            await link.close()

    return asyncio.run(run())


def test_the_leaders_address_is_kept_until_it_is_doubted() -> None:
    chain, clock = subnet_with(), ManualClock()

    async def act(link: LeaderLink) -> None:
        first = await link.client(ALICE.hotkey)
        serve(chain, 0, 8002)
        assert await link.client(ALICE.hotkey) is first
        link.doubt()
        assert await link.client(ALICE.hotkey) is first, "the chain was asked a moment ago"
        clock.advance(timeouts.METAGRAPH_REFRESH_S)
        while (found := await link.client(ALICE.hotkey)) is first:  # looked up beside it
            await asyncio.sleep(0)
        assert found.base_url == "http://127.0.0.2:8002"

    linked(chain, clock, act)


def test_a_new_leader_is_looked_up_at_once() -> None:
    chain = subnet_with()
    serve(chain, 1, 8003)

    async def act(link: LeaderLink) -> None:
        await link.client(ALICE.hotkey)
        client = await link.client(BOB.hotkey)
        assert (client.server, client.base_url) == (BOB.hotkey, "http://127.0.0.2:8003")

    linked(chain, ManualClock(), act)


def test_while_the_chain_is_away_the_known_address_serves() -> None:
    chain, clock = subnet_with(), ManualClock()

    async def act(link: LeaderLink) -> None:
        first = await link.client(ALICE.hotkey)
        link.doubt()
        clock.advance(timeouts.METAGRAPH_REFRESH_S)
        chain.fail_next["metagraph"] = [Retryable("away")] * 2
        assert await link.client(ALICE.hotkey) is first
        clock.advance(timeouts.METAGRAPH_REFRESH_S)
        with pytest.raises(Retryable, match="away"):
            await link.client(BOB.hotkey)

    linked(chain, clock, act)


class HungChain:
    """Answers once, then takes questions and never answers them."""

    def __init__(self, chain: MemoryWorld) -> None:
        self._port = chain.port()
        self.asked = 0

    async def metagraph(self, netuid: int) -> Metagraph:
        self.asked += 1
        if self.asked > 1:
            await asyncio.Event().wait()
        return await self._port.metagraph(netuid)


def test_a_chain_that_hangs_holds_up_no_request_to_a_known_address() -> None:
    hung, clock = HungChain(subnet_with()), ManualClock()

    async def scenario() -> None:
        link = LeaderLink(hung, NETUID, MINER, clock, allow_private=True)  # type: ignore[arg-type]
        first = await link.client(ALICE.hotkey)
        for _ in range(3):
            link.doubt()
            clock.advance(timeouts.METAGRAPH_REFRESH_S)
            assert await link.client(ALICE.hotkey) is first
            await asyncio.sleep(0)
        assert hung.asked == 2, "one question at a time"
        await link.close()

    asyncio.run(scenario())


def test_a_look_up_that_ends_late_does_not_bring_back_the_old_leader() -> None:
    chain, clock = subnet_with(), ManualClock()
    serve(chain, 1, 8003)

    async def act(link: LeaderLink) -> None:
        await link.client(ALICE.hotkey)
        link.doubt()
        clock.advance(timeouts.METAGRAPH_REFRESH_S)
        await link.client(ALICE.hotkey)  # the look-up begins when this task next waits
        serve(chain, 0, 8002)
        bob = await link.client(BOB.hotkey)
        for _ in range(10):
            await asyncio.sleep(0)
        assert await link.client(BOB.hotkey) is bob

    linked(chain, clock, act)


def test_a_leader_without_an_address_is_waited_for() -> None:
    async def act(link: LeaderLink) -> None:
        with pytest.raises(Retryable, match="no address"):
            await link.client(BOB.hotkey)

    linked(subnet_with(), ManualClock(), act)


def test_following_the_log_in_steps_sees_what_reading_it_whole_sees() -> None:
    world = eventful_world()
    part = MemoryStore()
    log = LogReader(StoreReader(part), world.spec)
    view = None
    for info in world.store.list("runs/tiny/log/"):
        part.put(info.key, world.store.get(info.key, max_bytes=1 << 20).body)
        view = catch_up(log, MINER.hotkey, view)
    assert view == catch_up(LogReader(world.reader, world.spec), MINER.hotkey, None)
    assert view is not None
    assert [[m.decision for m in members] for members in view.planned.values()] == [["accepted"]] * 4
    plans = view.plans(Revision(0), view.state.head)
    assert [(plan.base_revision, plan.revision) for plan in plans] == [(0, 1), (1, 2), (2, 3)]
    assert [plan.members[0].round for plan in plans] == [0, 2, 3], "the plan of the aborted round says nothing"
