"""Weights on chain: the rules of the chain kept, scores by seat, an unknown fate settled by reading."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace

from common.chain.port import Endpoint, Hyperparameters, Metagraph, Neuron
from common.data.dataset import Dataset
from common.errors import Retryable
from common.units import Coldkey, Hotkey, Uid
from tests.support.memchain import MemoryWallet
from tests.support.specs import VALIDATOR
from tests.validator.world import World, drive
from validator.payments import ChainFacts, decide, ensure_served, wanted

OWN = Hotkey("own")


def neuron(uid: int, name: str, registered_block: int = 5, permit: bool = False, last: int = 5) -> Neuron:
    return Neuron(Uid(uid), Hotkey(name), Coldkey(f"cold-{name}"), registered_block, permit, True, 0, 0.0, last, None)


def facts(**changes: object) -> ChainFacts:
    seats = (neuron(0, "own", permit=True), neuron(1, "a"), neuron(2, "b"))
    usual = ChainFacts(
        block=100,
        epoch_start_block=95,
        next_epoch_block=115,
        metagraph=Metagraph(2, 100, seats),
        settings=Hyperparameters(20, 10, 0, 1, 65535, False),
        held={},
    )
    return replace(usual, **changes)  # type: ignore[arg-type]


AVERAGES = {(Hotkey("a"), 5): 2.0, (Hotkey("b"), 5): 1.0}
WEIGHTS = {Uid(1): 65535, Uid(2): 32768}


def test_weights_go_to_seats_that_are_still_theirs_and_never_to_ourselves() -> None:
    averages = {**AVERAGES, (Hotkey("gone"), 5): 9.0, (Hotkey("b"), 4): 9.0, (OWN, 5): 9.0}
    assert wanted(averages, facts().metagraph, OWN) == WEIGHTS
    recycled = Metagraph(2, 100, (neuron(0, "own"), neuron(1, "a", registered_block=90), neuron(2, "b")))
    assert wanted(AVERAGES, recycled, OWN) == {Uid(2): 65535}


def test_due_weights_are_set() -> None:
    due = decide(facts(), AVERAGES, OWN)
    assert (due.action, due.weights) == ("set", WEIGHTS)


def test_the_chains_rules_are_waited_for() -> None:
    no_permit = Metagraph(2, 100, (neuron(0, "own"), neuron(1, "a"), neuron(2, "b")))
    recent = Metagraph(2, 100, (neuron(0, "own", permit=True, last=96), neuron(1, "a"), neuron(2, "b")))
    strangers = Metagraph(2, 100, (neuron(0, "x"), neuron(1, "a")))
    cases = [
        (facts(metagraph=no_permit), "permit", 115),
        (facts(metagraph=recent), "rate limit", 106),
        (facts(metagraph=recent, held={Uid(0): {Uid(1): 65535}}), "this epoch", 115),
        (facts(metagraph=strangers), "no seat", 115),
        (facts(settings=Hyperparameters(20, 10, 0, 3, 65535, False)), "at least 3", 115),
        (facts(settings=Hyperparameters(20, 10, 0, 1, 30000, False)), "largest weight", 115),
    ]
    for found, word, until in cases:
        due = decide(found, AVERAGES, OWN)
        assert (due.action, due.until_block) == ("wait", until)
        assert word in due.reason


def test_what_the_chain_holds_is_not_sent_again_and_nothing_earned_is_nothing_paid() -> None:
    assert decide(facts(held={Uid(0): WEIGHTS}), AVERAGES, OWN).action == "done"
    assert decide(facts(), {}, OWN).action == "done"
    assert decide(facts(), {(Hotkey("a"), 5): 0.0}, OWN).weights == {}


def test_scores_of_a_round_reach_the_chain_once(dataset: Dataset) -> None:
    world = World(dataset)

    async def go() -> None:
        await world.begin()
        wallet = MemoryWallet(VALIDATOR.hotkey, Coldkey(f"cold-{VALIDATOR.hotkey[:10]}"))
        port = world.chain_world.port(wallet)
        await port.add_stake(world.spec.netuid, VALIDATOR.hotkey, 100.0)
        validator = world.validator(until=1)
        await validator.payments.look()
        assert validator.board.standing.weights_round is None
        await drive(world, validator, 1)
        await validator.scorer.drain()
        await world.chain_world.advance(25)
        await validator.payments.look()
        own = world.seat(VALIDATOR).uid
        held = (await port.weights(world.spec.netuid))[own]
        assert set(held) == {world.seat(miner.signer).uid for miner in world.miners}
        assert max(held.values()) == 65535
        await validator.payments.look()
        assert validator.board.standing.weights_round == 0
        assert validator.board.standing.weights_set_block == world.chain_world.block

    asyncio.run(go())


def test_a_lost_answer_is_settled_by_reading_the_chain(dataset: Dataset) -> None:
    world = World(dataset)

    async def go() -> None:
        await world.begin()
        wallet = MemoryWallet(VALIDATOR.hotkey, Coldkey(f"cold-{VALIDATOR.hotkey[:10]}"))
        port = world.chain_world.port(wallet)
        await port.add_stake(world.spec.netuid, VALIDATOR.hotkey, 100.0)
        validator = world.validator(until=1)
        await drive(world, validator, 1)
        await validator.scorer.drain()
        await world.chain_world.advance(25)
        world.chain_world.fail_next["set_weights"] = [Retryable("no answer: fate unknown")]
        with contextlib.suppress(Retryable):
            await validator.payments.look()
        await validator.payments.look()
        assert await port.weights(world.spec.netuid) == {}, "it was sent again before its fate could be known"
        await world.chain_world.advance(10)
        await validator.payments.look()
        assert await port.weights(world.spec.netuid) != {}

    asyncio.run(go())


def test_the_endpoint_is_published_only_when_the_chain_shows_another(dataset: Dataset) -> None:
    world = World(dataset)

    async def go() -> None:
        await world.begin(0)
        port = world.chain_world.port(MemoryWallet(VALIDATOR.hotkey, Coldkey("cold")))
        here = Endpoint("127.0.0.2", 8091)
        assert await ensure_served(port, world.spec.netuid, VALIDATOR.hotkey, here)
        assert not await ensure_served(port, world.spec.netuid, VALIDATOR.hotkey, here)
        assert await ensure_served(port, world.spec.netuid, VALIDATOR.hotkey, Endpoint("127.0.0.2", 8092))

    asyncio.run(go())
