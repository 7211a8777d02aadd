"""The butterfly on a run in one process: whatever its owners do, the round commits the bytes of a leader alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import numpy as np
import pytest

from common import keys
from common.codec.container import HEADER_BYTES
from common.codec.params import delta_params
from common.data.dataset import Dataset
from common.merge.partition import PartitionMean, PartitionReducer, byte_range, slices_of
from common.records import ObjectRef
from common.reductions import Copy, Reduction, sign_reduction
from common.runlog.verify import verify_run
from common.spec import ReduceSpec
from common.store.reader import StoreReader
from common.units import ShardId
from common.wire import HeartbeatReply, ReductionRequest
from tests.support.specs import VALIDATOR
from tests.validator.world import Miner, World, play
from validator.process import Validator
from validator.scoring.reports import read_reports

Twist = Callable[[np.ndarray], np.ndarray]  # type: ignore[type-arg]
MINERS = 4


def exact(values: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
    return values


def lie(values: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
    return values + np.float32(0.25)


def other_lie(values: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
    return -values - np.float32(0.5)


async def reduce(world: World, validator: Validator, miner: Miner, reply: HeartbeatReply, twist: Twist) -> None:
    """What ``miner.reducer`` does, over the memory store."""
    view, state = reply.reduce, world.log()
    if view is None or state.open_round is None or state.open_round.plan is None:
        return
    plan, spec, reader = state.open_round.plan, world.spec, StoreReader(world.store)
    made: list[tuple[Copy, bytes]] = []
    count = validator.board.counts()[ShardId(0)]
    with world.unwatched():
        for duty in view.duties:
            where = slices_of(spec, count)[duty.partition]
            reducer = PartitionReducer(spec, plan, ShardId(0), where)
            for member in reducer.members:
                size = member.delta.size_bytes
                key = keys.delta_key(spec.run, member.round, member.shard, member.hotkey, member.delta.sha256)
                start, end = byte_range(spec, delta_params(spec.codec, member.base_revision), count, duty.partition)
                header = reader.fetch_range(key, start=0, end=HEADER_BYTES, size_bytes=size)
                reducer.add(header, reader.fetch_range(key, start=start, end=end, size_bytes=size))
            right = reducer.finish()
            assert right.inputs_sha256 == duty.inputs_sha256
            mean = PartitionMean(twist(right.values).astype(np.float32), right.inputs_sha256)
            ref = ObjectRef(mean.sha256, len(mean.body))
            made.append((Copy(ShardId(0), duty.partition, ref, mean.inputs_sha256), mean.body))
    word = Reduction(1, spec.run, miner.signer.hotkey, plan.round, view.plan_sha256, tuple(c for c, _ in made))
    request = ReductionRequest(reduction=sign_reduction(word, miner.signer).to_json())
    bodies = {copy.partition: body for copy, body in made}
    reply_ = await validator.service.reduced(miner.caller, request)
    for target in reply_.uploads:
        world.store.redeem_put(target.upload.url, target.upload.headers, bodies[target.partition])
    assert (await validator.service.reduced(miner.caller, request)).uploads == ()


async def play_round(world: World, twists: dict[int, Twist], gone: frozenset[int] = frozenset()) -> Validator:
    """One round, committed and scored; ``gone`` say nothing once the plan is in the log."""
    await world.begin(MINERS)
    validator = world.validator(until=1)
    for _ in range(600):
        await validator.driver.step()
        if validator.board.journal.state.head >= 1 and validator.board.round is None:
            await validator.scorer.drain()
            return validator
        await world.chain_world.advance()
        frozen = validator.board.round is not None and validator.board.round.opened.plan is not None
        for number, miner in enumerate(world.miners):
            if frozen and number not in gone:
                await reduce(world, validator, miner, miner.beat(validator), twists.get(number, exact))
        if not frozen:
            await play(world, validator)
        world.clock.advance(0.25)
    raise AssertionError(validator.board.waiting_for)


ALONE = ReduceSpec("leader", 4, 1, 0)
PAIRS = ReduceSpec("butterfly", 4, 2, 1)
ALL_DRAWN = ReduceSpec("butterfly", 4, 2, 4)
NOBODY: frozenset[int] = frozenset()


def outcome(dataset: Dataset, how: ReduceSpec, twists: dict[int, Twist], gone: frozenset[int]) -> World:
    world = World(dataset, reduce=how)
    asyncio.run(play_round(world, twists, gone))
    return world


@pytest.fixture(scope="module")
def alone(dataset: Dataset) -> tuple[object, ...]:
    """What a leader alone commits."""
    return outcome(dataset, ALONE, {}, NOBODY).log().head_node.shards


def liars(world: World) -> set[int]:
    (report,) = read_reports(world.store, world.spec, VALIDATOR.hotkey)
    named = {member.hotkey for member in report.members if member.lie}
    assert all(member.round_score == 0 for member in report.members if member.lie)
    assert all((member.barred_until > 0) == bool(member.lie) for member in report.members)
    return {number for number, miner in enumerate(world.miners) if miner.signer.hotkey in named}


EVERYBODY = frozenset(range(MINERS))


@pytest.mark.parametrize(
    ("how", "twists", "gone", "named"),
    [
        pytest.param(PAIRS, {}, NOBODY, set(), id="all honest"),
        pytest.param(PAIRS, {}, EVERYBODY, set(), id="all owners gone"),
        pytest.param(PAIRS, {}, frozenset({0, 1}), set(), id="one provider gone"),
        pytest.param(PAIRS, {1: lie}, NOBODY, {1}, id="one liar"),
        pytest.param(ALL_DRAWN, {0: lie, 1: other_lie, 2: lie}, frozenset({3}), {0, 1, 2}, id="lies and silence"),
        pytest.param(ALL_DRAWN, dict.fromkeys(range(MINERS), lie), NOBODY, set(EVERYBODY), id="all lie alike"),
    ],
)
def test_the_round_commits_what_a_leader_alone_would(
    dataset: Dataset,
    alone: tuple[object, ...],
    how: ReduceSpec,
    twists: dict[int, Twist],
    gone: frozenset[int],
    named: set[int],
) -> None:
    world = outcome(dataset, how, twists, gone)
    assert world.log().head_node.shards == alone
    assert liars(world) == named
    assert verify_run(world.store, world.spec.run).merges == 1
