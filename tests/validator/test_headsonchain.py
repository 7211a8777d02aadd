"""Heads of the log on chain: committed once an epoch, and binding for whoever wants to lead."""

from __future__ import annotations

import asyncio
import contextlib
from typing import cast

from common import keys
from common.chain.headcommit import CommittedHead, encode, of_run
from common.errors import Retryable
from common.identity import KeypairSigner
from common.timeouts import LEASE_S
from common.units import Coldkey, Sha256
from tests.support.memchain import MemoryWallet
from tests.support.specs import OWNER, VALIDATOR
from tests.validator.world import World, drive, steps
from validator.headsonchain import HeadsOnChain
from validator.process import Validator


def committed(world: World) -> CommittedHead | None:
    return of_run(world.chain_world.subnet(world.spec.netuid).commitments.get(VALIDATOR.hotkey), "demo")


def commit_as_validator(world: World, head: CommittedHead) -> None:
    world.chain_world.subnet(world.spec.netuid).commitments[VALIDATOR.hotkey] = encode(head)


def test_a_validator_commits_the_logs_head_once_an_epoch(world: World) -> None:
    async def go() -> None:
        await world.begin()
        validator = world.validator(until=2)
        await drive(world, validator, 1)
        on_chain = validator.heads_on_chain
        await on_chain.look()
        first = committed(world)
        assert first is not None
        state = world.log()
        assert (first.seq, first.slot_sha256) == (state.next_seq - 1, state.head_sha256)
        await drive(world, validator, 2)
        await on_chain.look()
        assert committed(world) == first, "not again in the same epoch"
        await world.chain_world.advance(world.chain_world.subnet(world.spec.netuid).settings.tempo)
        await on_chain.look()
        second = committed(world)
        assert second is not None
        assert second.seq == world.log().next_seq - 1 > first.seq

    asyncio.run(go())


def test_a_commitment_whose_answer_was_lost_is_found_on_chain(world: World) -> None:
    async def go() -> None:
        await world.begin()
        validator = world.validator(until=1)
        await drive(world, validator, 1)
        world.chain_world.fail_next["set_commitment"] = [Retryable("no answer")]
        with contextlib.suppress(Retryable):
            await validator.heads_on_chain.look()
        await validator.heads_on_chain.look()
        await world.validator(until=1).heads_on_chain.look()
        assert committed(world) is not None

    asyncio.run(go())


def test_the_owners_hotkey_has_its_commitment_taken(world: World) -> None:
    async def go() -> None:
        await world.begin()
        validator = world.validator(until=1)
        port = world.chain_world.port(MemoryWallet(OWNER.hotkey, Coldkey("owner-cold")))
        await port.set_commitment(world.spec.netuid, [b"the run's location"])
        board = validator.board
        owners = HeadsOnChain(port, world.spec.netuid, board.journal, validator.guard, OWNER.hotkey)
        await asyncio.wait_for(owners.run(), 10.0)
        assert await port.commitment(world.spec.netuid, OWNER.hotkey) == (b"the run's location",)

    asyncio.run(go())


def test_nobody_leads_on_a_log_whose_tail_is_missing_until_it_is_back(world: World) -> None:
    async def go() -> None:
        await world.begin()
        first = world.validator(until=1)
        await drive(world, first, 1)
        await first.heads_on_chain.look()
        state = world.log()
        key = keys.log_key("demo", state.next_seq - 1)
        body = world.store.get(key, max_bytes=1 << 20).body
        world.store.delete(key)
        second = world.validator(until=2)
        world.clock.advance(2 * LEASE_S)
        await steps(world, second, 6)
        assert not second.board.leadership.leading
        assert "its tail was cut off" in second.board.waiting_for
        assert VALIDATOR.hotkey in second.board.waiting_for
        assert world.log().next_seq == state.next_seq - 1, "nothing was written where the tail belongs"
        world.store.put(key, body)
        await drive(world, second, 2)

    asyncio.run(go())
    assert world.log().voids == ()


def test_nobody_leads_on_another_history_or_commits_its_head(world: World) -> None:
    async def go() -> Validator:
        await world.begin()
        commit_as_validator(world, CommittedHead("demo", 0, Sha256("ab" * 32)))
        validator = world.validator(until=1)
        await steps(world, validator, 4)
        await validator.heads_on_chain.look()
        return validator

    validator = asyncio.run(go())
    assert "rewritten" in validator.board.waiting_for
    assert world.log().term == 0
    assert cast(CommittedHead, committed(world)).slot_sha256 == "ab" * 32


def test_what_a_stranger_commits_binds_nobody_and_a_silent_chain_is_waited_for(world: World) -> None:
    async def go() -> None:
        await world.begin()
        stranger = KeypairSigner.from_uri("//Miner0").hotkey
        fields = encode(CommittedHead("demo", 999, Sha256("cd" * 32)))
        world.chain_world.subnet(world.spec.netuid).commitments[stranger] = fields
        world.chain_world.fail_next["commitment"] = [Retryable("away")]
        validator = world.validator(until=1)
        await validator.driver.step()
        assert "until the chain tells" in validator.board.waiting_for
        await drive(world, validator, 1)

    asyncio.run(go())
