"""The butterfly on a whole run in one process: whatever its owners do, the round commits the bytes of a leader alone."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from common import keys
from common.clock import SystemClock
from common.data.dataset import Dataset
from common.errors import Rejected
from common.merge.partition import PartitionMean, PartitionReducer, byte_range, slices_of
from common.codec.container import HEADER_BYTES
from common.codec.params import delta_params
from common.records import ObjectRef
from common.reductions import Copy, Reduction, sign_reduction
from common.spec import ReduceSpec
from common.store.reader import StoreReader
from common.units import ShardId
from common.wire import HeartbeatReply, ReductionRequest
from tests.validator.world import Miner, World, make_dataset, play
from validator.process import Validator

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


async def run(dataset: Dataset, how: ReduceSpec, twists: dict[int, Twist], gone: frozenset[int] = frozenset()) -> World:
    """One round; ``gone`` say nothing once their duties are dealt."""
    world = World(dataset, reduce=how)
    await world.begin(MINERS)
    validator = world.validator()
    world.validators = [validator]  # type: ignore[attr-defined]
    for _ in range(600):
        await validator.driver.step()
        if validator.board.journal.state.head >= 1 and validator.board.round is None:
            return world
        await world.chain_world.advance()
        frozen = validator.board.round is not None and validator.board.round.opened.plan is not None
        for number, miner in enumerate(world.miners):
            if frozen:
                if number not in gone:
                    await reduce(world, validator, miner, miner.beat(validator), twists.get(number, exact))
        if not frozen:
            await play(world, validator)
        world.clock.advance(0.25)
    raise AssertionError(validator.board.waiting_for)


ALONE = ReduceSpec("leader", 4, 1, 0)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return make_dataset(tmp_path_factory.mktemp("text"))


def head(world: World) -> tuple[str, ...]:
    return tuple(str(shard) for shard in world.log().head_node.shards)
