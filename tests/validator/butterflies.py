"""Owners of the butterfly in one process: what a miner's reducer does, honest or not, over the memory store."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from loguru import logger

from common import keys
from common.codec.params import F32
from common.data.dataset import Dataset
from common.merge.butterfly import WRONG_MEAN
from common.merge.partition import PartitionMean
from common.records import ObjectRef
from common.reductions import Copy, Reduction, sign_reduction
from common.runlog.state import OpenRound
from common.runlog.verify import verify_run
from common.spec import ReduceSpec
from common.store.reader import StoreReader
from common.units import Hotkey, Sha256, ShardId
from common.wire import HeartbeatReply, ReduceView, ReductionRequest
from miner.means import MeanMaker
from tests.support.specs import VALIDATOR
from tests.validator.world import Miner, World, play
from validator.process import Validator
from validator.scoring.reports import read_reports

if TYPE_CHECKING:
    from loguru import Message

Twist = Callable[[F32], F32]
Turn = Callable[[Validator], Awaitable[None]]
MINERS = 4
EVERYBODY = frozenset(range(MINERS))
NOBODY: frozenset[int] = frozenset()
ALONE = ReduceSpec("leader", 4, 1, 0)
UNDRAWN = ReduceSpec("butterfly", 4, 2, 0)
"""Two owners, and nothing is computed again that they agree on."""


def exact(values: F32) -> F32:
    return values


def lie(values: F32) -> F32:
    return values + np.float32(0.25)


def other_lie(values: F32) -> F32:
    return -values - np.float32(0.5)


def third_lie(values: F32) -> F32:
    return np.zeros_like(values)


@dataclass(frozen=True)
class Work:
    """What an owner has made of its duties."""

    word: Reduction
    bodies: Mapping[tuple[ShardId, int], bytes]

    def request(self, miner: Miner) -> ReductionRequest:
        """Signed anew with each call, and no two signatures are the same."""
        return ReductionRequest(reduction=sign_reduction(self.word, miner.signer).to_json())


def work(world: World, miner: Miner, view: ReduceView, twist: Twist = exact, opened: OpenRound | None = None) -> Work:
    """The means of all duties that the leader asks for; ``opened`` as the log has it, if that was read already."""
    opened = opened or world.log().open_round
    assert opened is not None
    plan, spec = opened.plan, world.spec
    assert plan is not None
    copies, bodies = [], {}
    with world.unwatched():
        maker = MeanMaker(spec, StoreReader(world.store))
        for (_, partition), right in maker.means(plan, Sha256(view.plan_sha256), list(view.duties), threading.Event()):
            mean = PartitionMean(twist(right.values).astype(np.float32), right.inputs_sha256)
            ref = ObjectRef(mean.sha256, len(mean.body))
            copies.append(Copy(ShardId(0), partition, ref, mean.inputs_sha256))
            bodies[ShardId(0), partition] = mean.body
    word = Reduction(1, spec.run, miner.signer.hotkey, plan.round, view.plan_sha256, tuple(copies))  # type: ignore[arg-type]
    return Work(word, bodies)


async def hand_in(validator: Validator, miner: Miner, made: Work) -> None:
    """Announce, put, and say that all is there. Raises what the leader refuses with."""
    request = made.request(miner)
    reply = await validator.service.reduced(miner.caller, request)
    for target in reply.uploads:
        body = made.bodies[ShardId(target.shard), target.partition]
        miner.world.store.redeem_put(target.upload.url, target.upload.headers, body)
    assert (await validator.service.reduced(miner.caller, request)).uploads == ()


async def reduce(world: World, validator: Validator, miner: Miner, reply: HeartbeatReply, twist: Twist = exact) -> None:
    """What ``miner.reducer`` does with the answer to a heartbeat."""
    state = world.log()
    if reply.reduce is not None and state.open_round is not None and state.open_round.plan is not None:
        await hand_in(validator, miner, work(world, miner, reply.reduce, twist))


async def until_dealt(world: World, validator: Validator) -> dict[int, ReduceView]:
    """A round up to the moment at which the partitions are dealt; who is asked for what, by miner."""
    for _ in range(300):
        await validator.driver.step()
        current = validator.board.round
        if current is None or current.opened.plan is None:
            await play(world, validator)
        else:
            await world.chain_world.advance()
            views = {number: miner.beat(validator).reduce for number, miner in enumerate(world.miners)}
            asked = {number: view for number, view in views.items() if view is not None}
            if asked:
                return asked
        world.clock.advance(0.25)
    raise AssertionError(validator.board.waiting_for)


async def until_committed(world: World, validator: Validator, turn: Turn, head: int = 1) -> None:
    """The rest of it, and its scoring; ``turn`` is what the miners do after each step."""
    for _ in range(600):
        await validator.driver.step()
        if validator.board.journal.state.head >= head and validator.board.round is None:
            await validator.scorer.drain()
            return
        await world.chain_world.advance()
        await turn(validator)
        world.clock.advance(0.25)
    raise AssertionError(validator.board.waiting_for)


def owners(
    world: World, twists: Mapping[int, Twist] | None = None, gone: Collection[int] = (), late: Collection[int] = ()
) -> Turn:
    """Everybody does its duties at once, ``gone`` are silent, and ``late`` only beat."""

    async def turn(validator: Validator) -> None:
        for number, miner in enumerate(world.miners):
            if number not in gone:
                reply = miner.beat(validator)
                if number not in late:
                    await reduce(world, validator, miner, reply, (twists or {}).get(number, exact))

    return turn


async def play_round(
    world: World, twists: Mapping[int, Twist], gone: Collection[int] = NOBODY, miners: int = MINERS, **parts: Any
) -> Validator:
    """One round, committed and scored; ``gone`` say nothing once the plan is in the log."""
    await world.begin(miners)
    validator = world.validator(until=1, **parts)
    acting = owners(world, twists, gone)

    async def turn(validator: Validator) -> None:
        frozen = validator.board.round is not None and validator.board.round.opened.plan is not None
        await (acting(validator) if frozen else play(world, validator))

    await until_committed(world, validator, turn)
    return validator


def bytes_of_a_leader_alone(dataset: Dataset, miners: int = MINERS) -> tuple[object, ...]:
    """What it commits in the first round: of every shard the hashes of weights, outer state and update."""

    async def go() -> None:
        await play_round(world, {}, miners=miners)

    world = World(dataset, reduce=ALONE)
    asyncio.run(go())
    return world.log().head_node.shards


def liars(world: World, by: Hotkey = VALIDATOR.hotkey) -> set[int]:
    """Who is named in the only report, which has consequences for them and for nobody else."""
    (report,) = read_reports(world.store, world.spec, by)
    named = {member.hotkey for member in report.members if member.lie}
    assert all(member.round_score == 0 for member in report.members if member.lie)
    assert all((member.barred_for == WRONG_MEAN) == bool(member.lie) for member in report.members)
    return {number for number, miner in enumerate(world.miners) if miner.signer.hotkey in named}


def check_round(
    world: World, alone: tuple[object, ...], named: Collection[int], by: Hotkey = VALIDATOR.hotkey, terms: int = 1
) -> None:
    """The first round was committed, in its first attempt, with the bytes of a leader alone; ``by`` names nobody else.

    ``terms`` of leaders were needed.
    """
    state = world.log()
    assert state.head_node.shards == alone
    assert (state.term, state.rounds_committed, state.rounds_aborted) == (terms, 1, 0)
    assert liars(world, by) == set(named)
    assert verify_run(world.store, world.spec.run).merges == 1


def stored(world: World, kind: str) -> list[str]:
    """Keys of the means, or of the signed words (reductions), that lie in the bucket."""
    infos = world.store.list(keys.run_prefix(world.spec.run))
    found = ((info.key, keys.parse_key(world.spec.run, info.key)) for info in infos)
    return [key for key, parts in found if parts is not None and parts.kind == kind]


@contextmanager
def reductions_told() -> Iterator[list[str]]:
    """What the leader says of each reduction: how many partitions came from miners, and who was late."""
    lines: list[str] = []
    sink = logger.add(
        lambda message: lines.append(message.record["message"]),
        filter=lambda record: record["extra"].get("event") == "reduced",
    )
    try:
        yield lines
    finally:
        logger.remove(sink)


@contextmanager
def reduction_events() -> Iterator[list[tuple[object, ...]]]:
    """Events of the leader: ("reduced", taken, checked) for means that it put together, and ("means_dropped",)."""
    found: list[tuple[object, ...]] = []

    def note(message: Message) -> None:
        extra = message.record["extra"]
        if extra.get("event") in ("reduced", "means_dropped"):
            found.append((extra["event"], *(extra[name] for name in ("taken", "checked") if name in extra)))

    sink = logger.add(note)
    try:
        yield found
    finally:
        logger.remove(sink)
