"""Whoever is behind takes the way that is the least to download, goes around what is missing, and ends at the hash."""

from __future__ import annotations

from functools import lru_cache
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common import keys
from common.errors import Rejected
from common.runlog.catchup import At, Stage, reach, ways
from common.runlog.materialise import materialise
from common.runlog.recompute import hash_outer
from common.runlog.remerge import rebuild
from common.store.memory import MemoryStore
from common.store.reader import StoreReader
from common.units import Revision, ShardId
from miner.revisions import Held, bring_to_head
from tests.runlog.support import small_spec, steady
from tests.runlog.world import World, begin_world, copy_store

SIZES = st.none() | st.integers(0, 50)


@st.composite
def lineages(draw: st.DrawFn) -> list[Stage]:
    count = draw(st.integers(1, 7))
    return [Stage(Revision(3 * i), draw(SIZES), draw(SIZES)) for i in range(count)]


def cheapest_by_trying(stages: list[Stage], held: Revision | None) -> int | None:
    """Every set of objects that ends in the target, tried one by one."""
    objects = [("step", i) for i in range(len(stages))] + [("snapshot", i) for i in range(len(stages))]
    best = None
    for count in range(len(objects) + 1):
        for chosen in combinations(objects, count):
            sizes = [stages[i].step_bytes if what == "step" else stages[i].snapshot_bytes for what, i in chosen]
            if all(size is not None for size in sizes) and leads(stages, held, set(chosen)):
                cost = sum(size for size in sizes if size is not None)
                best = cost if best is None else min(best, cost)
    return best


def leads(stages: list[Stage], held: Revision | None, chosen: set[tuple[str, int]]) -> bool:
    here = False
    for i, stage in enumerate(stages):
        here = (here and ("step", i) in chosen) or ("snapshot", i) in chosen or stage.revision == held
    return here


@given(lineages(), st.none() | st.integers(0, 7))
@steady(60)
def test_the_first_way_is_the_cheapest_of_all(stages: list[Stage], held: int | None) -> None:
    stages = stages[-5:]
    start = None if held is None else Revision(3 * held)
    found = ways(stages, start)
    assert [way.download_bytes for way in found] == sorted(way.download_bytes for way in found)
    best = cheapest_by_trying(stages, start)
    assert (found[0].download_bytes if found else None) == best


@given(lineages(), st.none() | st.integers(0, 6), st.data())
@steady(100)
def test_what_is_missing_leaves_the_other_ways_and_none_is_said(
    stages: list[Stage], held: int | None, data: st.DataObject
) -> None:
    gone = data.draw(st.sets(st.sampled_from([(what, s.revision) for what in ("load", "step") for s in stages])))
    start = At(Revision(3 * held), 3 * held) if held is not None and held < len(stages) else None

    def load(revision: Revision) -> int:
        if ("load", revision) in gone:
            raise Rejected("object_missing", "gone")
        return int(revision)

    def step(revision: Revision, value: int) -> int:
        assert value == revision - 3, "a step is taken from the parent"
        if ("step", revision) in gone:
            raise Rejected("object_missing", "gone")
        return int(revision)

    there = [
        Stage(
            s.revision,
            None if ("step", s.revision) in gone else s.step_bytes,
            None if ("load", s.revision) in gone else s.snapshot_bytes,
        )
        for s in stages
    ]
    notes: list[str] = []
    if ways(there, start.revision if start else None):
        assert reach(stages, start, load, step, lambda _: None, notes) == stages[-1].revision
    else:
        with pytest.raises(Rejected, match="roll the run back"):
            reach(stages, start, load, step, lambda _: None, notes)


@lru_cache(maxsize=2)
def long_world(momentum: float) -> World:
    """Twelve revisions, of which the seventh begins a branch at the fourth; a snapshot at every second one."""
    world = begin_world(small_spec(1, momentum))
    for _ in range(6):
        world.run_round()
    world.roll_back(4)
    for _ in range(6):
        world.run_round()
    return world


def holder(world: World, revision: int) -> Held:
    node = world.state.revisions[Revision(revision)]
    built = materialise(world.reader, world.state, node.revision)
    return Held(node.revision, node.sha256, built.shards[0])


def fetched(world: World, held: Held | None, store: MemoryStore | None = None) -> tuple[Held, int]:
    """The head, and the objects that were read for it."""
    asked: list[str] = []
    store = store or copy_store(world.store)
    store.before = lambda operation, key: asked.append(key)
    return bring_to_head(StoreReader(store), world.state, held), len(asked)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("revision", [None, *range(13)])
def test_a_miner_behind_by_any_number_of_revisions_reaches_the_head(revision: int | None, momentum: float) -> None:
    """From its own lineage, from a branch that was left, or from nothing."""
    world = long_world(momentum)
    found, _ = fetched(world, None if revision is None else holder(world, revision))
    ours = world.memory[ShardId(0)]
    assert found.sha256 == world.state.head_node.sha256
    assert np.array_equal(found.weights.view(np.uint32), ours.weights.view(np.uint32))
    assert (found.shard.momentum is None) == (momentum == 0)
    if found.shard.momentum is not None and ours.outer.momentum is not None:
        assert np.array_equal(found.shard.momentum.view(np.uint32), ours.outer.momentum.view(np.uint32))


def test_a_miner_replays_as_long_as_that_is_less_than_a_snapshot() -> None:
    """An update of this run takes a ninth of the snapshot's weights from the second revision on."""
    world = long_world(0.0)
    said: list[str] = []
    held = holder(world, 7)
    materialise(world.reader, world.state, world.state.head, [ShardId(0)], At(held.revision, held.shard), said.append)
    assert "by revision 7, which is held, and 5 steps" in said[0]
    assert "the other way: the snapshot of revision 12 and 0 steps" in said[0]
    assert fetched(world, held)[1] == 5


def test_an_update_that_is_gone_leaves_the_snapshot() -> None:
    world = long_world(0.0)
    held, store = holder(world, 7), copy_store(world.store)
    node = world.state.revisions[Revision(9)]
    made = node.shards[0].update
    assert made is not None
    assert node.round is not None
    store.delete(keys.update_key(world.spec.run, node.round, ShardId(0), made.sha256))
    found, _ = fetched(world, held, store)
    assert found.sha256 == world.state.head_node.sha256


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("revision", [None, 4, 9, 11])
def test_a_validator_that_was_away_has_the_residual_too(revision: int | None, momentum: float) -> None:
    world = long_world(momentum)
    known = None
    if revision is not None:
        known = At(Revision(revision), rebuild(world.reader, world.state, Revision(revision), ShardId(0))[0])
    memory, notes = rebuild(world.reader, world.state, world.state.head, ShardId(0), known)
    assert notes == ()
    assert hash_outer(memory.outer) == world.state.head_node.shards[0].outer_sha256
