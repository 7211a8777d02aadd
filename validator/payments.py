"""Weights on chain: when they are due, which they are, and the loop that sets them.

``decide`` is pure. Invariants: at most once an epoch and never against the rate limit; only with a permit; a weight
goes to a uid only while (hotkey, registration block) still hold it; what the chain already has is not sent again, and
an answer that was lost is settled by reading the chain, never by sending blindly.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from loguru import logger

from common import timeouts
from common.chain.port import ChainPort, Endpoint, Hyperparameters, Metagraph
from common.chain.weights import to_u16
from common.errors import Fatal, Rejected, RemoteError, Retryable
from common.timeouts import CHAIN_CALL_S
from common.units import Hotkey, Uid
from validator.board import Board
from validator.scoring.policy import Seat

SETTLE_BLOCKS = 8
"""A transaction whose fate is unknown is looked for this long before another may be sent."""
LOOK_BLOCKS = 2


@dataclass(frozen=True)
class ChainFacts:
    """What the chain says at one block."""

    block: int
    epoch_start_block: int
    next_epoch_block: int
    metagraph: Metagraph
    settings: Hyperparameters
    held: Mapping[Uid, Mapping[Uid, int]]
    """Every validator's weights as the chain holds them."""


@dataclass(frozen=True)
class Due:
    """What to do about the weights, until which block to wait otherwise, and why."""

    action: Literal["set", "wait", "done"]
    weights: dict[Uid, int]
    until_block: int
    reason: str


def wanted(averages: Mapping[Seat, float], metagraph: Metagraph, own: Hotkey) -> dict[Uid, int]:
    """The u16 vector by uid of those whose seat is still theirs; empty when nobody has earned anything."""
    scores: dict[Uid, float] = {}
    for (hotkey, registered_block), score in sorted(averages.items()):
        neuron = metagraph.by_hotkey(hotkey)
        if neuron is not None and neuron.registered_block == registered_block and hotkey != own:
            scores[neuron.uid] = score
    return to_u16(dict(sorted(scores.items())))


def decide(facts: ChainFacts, averages: Mapping[Seat, float], own: Hotkey) -> Due:
    """Whether to set weights now."""
    me = facts.metagraph.by_hotkey(own)
    later = max(facts.block + 1, facts.next_epoch_block)
    if me is None:
        return Due("wait", {}, later, "our hotkey has no seat on the subnet")
    weights = wanted(averages, facts.metagraph, own)
    if not weights:
        return Due("done", {}, later, "nobody has earned anything yet")
    if dict(facts.held.get(me.uid, {})) == weights:
        return Due("done", weights, later, "the chain holds these weights")
    if not me.validator_permit:
        return Due("wait", weights, later, "no validator permit yet: an epoch with stake gives it")
    if len(weights) < facts.settings.min_allowed_weights:
        least = facts.settings.min_allowed_weights
        return Due("wait", weights, later, f"the subnet wants at least {least} weights, we have {len(weights)}")
    if _largest_share(weights) > facts.settings.max_weight_u16:
        return Due("wait", weights, later, "the subnet's largest weight is below what one miner has earned")
    if me.uid in facts.held and me.last_update_block >= facts.epoch_start_block:
        return Due("wait", weights, later, "this epoch's weights are set")
    free = me.last_update_block + facts.settings.weights_rate_limit_blocks
    if facts.block < free:
        return Due("wait", weights, free, f"the rate limit ends with block {free}")
    return Due("set", weights, later, f"weights for {len(weights)} miners")


def _largest_share(weights: Mapping[Uid, int]) -> int:
    """Largest share of the sum, in 65535ths; a single weight is always allowed."""
    return 0 if len(weights) == 1 else max(weights.values()) * 65535 // sum(weights.values())


class Payments:
    """Sets the weights of one validator."""

    def __init__(self, board: Board, chain: ChainPort) -> None:
        self._board = board
        self._chain = chain
        self._unsettled_until_block = 0
        self._told = ""

    async def run(self) -> None:
        """For ever: look, set when due, wait for a block. A chain that is away is waited for."""
        while True:
            try:
                until = await self.look()
                await self._chain.wait_for_block(until, CHAIN_CALL_S)
            except Retryable as fault:
                logger.debug("payments wait for the chain: {}", fault)
                await asyncio.sleep(fault.retry_after_s or timeouts.CHAIN_AWAY_S)
            except (Rejected, Fatal) as error:
                logger.warning("weights are not set: {}", error)
                await asyncio.sleep(timeouts.CHAIN_AWAY_S)

    async def look(self) -> int:
        """One look, and the write if it is due; the block to look again at."""
        standing, netuid = self._board.standing, self._board.spec.netuid
        averages, reported = dict(standing.averages), standing.reported_round
        if reported is None:
            return await self._chain.block() + LOOK_BLOCKS
        facts = await self._read(netuid)
        due = decide(facts, averages, self._board.signer.hotkey)
        if due.action == "set" and facts.block >= self._unsettled_until_block:
            await self._set(due, facts.block)
            return facts.block + LOOK_BLOCKS
        if due.action == "done" and due.weights:
            me = facts.metagraph.by_hotkey(self._board.signer.hotkey)
            standing.weights_set_block = me.last_update_block if me else None
            standing.weights_round = reported
        if due.reason != self._told:
            logger.info("weights: {}", due.reason)
            self._told = due.reason
        return min(due.until_block, facts.block + 10 * LOOK_BLOCKS)

    async def _set(self, due: Due, block: int) -> None:
        settings = await self._chain.hyperparameters(self._board.spec.netuid)
        self._unsettled_until_block = block + SETTLE_BLOCKS  # until its fate is known, which the next look reads
        await self._chain.set_weights(self._board.spec.netuid, due.weights, settings.version_key)
        self._unsettled_until_block = 0
        logger.bind(event="weights_set").info("{}", due.reason)

    async def _read(self, netuid: int) -> ChainFacts:
        chain = self._chain
        block = await chain.block()
        since = await chain.blocks_since_epoch(netuid)
        return ChainFacts(
            block=block,
            epoch_start_block=block - since,
            next_epoch_block=await chain.next_epoch_block(netuid),
            metagraph=await chain.metagraph(netuid),
            settings=await chain.hyperparameters(netuid),
            held=await chain.weights(netuid),
        )


async def ensure_served(chain: ChainPort, netuid: int, hotkey: Hotkey, endpoint: Endpoint) -> bool:
    """Publish where we serve, unless the chain says it already. Whether anything was sent. Raises as ``ChainPort``."""
    neuron = (await chain.metagraph(netuid)).by_hotkey(hotkey)
    if neuron is not None and neuron.endpoint == endpoint:
        return False
    await chain.serve(netuid, endpoint)
    return True


async def keep_served(chain: ChainPort, netuid: int, hotkey: Hotkey, endpoint: Endpoint) -> None:
    """Until it is published: try, wait, try again."""
    while True:
        try:
            if await ensure_served(chain, netuid, hotkey, endpoint):
                logger.info("published on chain as {}:{}", endpoint.ip, endpoint.port)
            return
        except RemoteError as error:
            logger.warning("the endpoint is not published yet: {}", error)
            await asyncio.sleep(timeouts.CHAIN_AWAY_S)
