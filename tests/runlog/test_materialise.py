"""A revision from the bucket: by snapshot and updates, around what is missing, and never with another hash."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import pytest

from common import keys
from common.errors import Rejected, Retryable
from common.runlog.materialise import materialise, materialise_newest
from common.runlog.remerge import rebuild
from common.store.memory import MemoryStore
from common.store.reader import StoreReader
from common.store.retry import NO_RETRIES
from common.units import Revision, ShardId
from tests.runlog.world import World, copy_store, eventful_world


@lru_cache(maxsize=2)
def world(num_shards: int = 2) -> World:
    """Revisions 0 to 3, snapshots at 0 and 2."""
    return eventful_world(num_shards, momentum=0.9)


def snapshot(w: World, revision: int, shard: int = 0) -> str:
    made = w.state.revisions[Revision(revision)].shards[shard].snapshot
    assert made is not None
    return keys.snapshot_key("tiny", Revision(revision), ShardId(shard), made.sha256)


def update(w: World, revision: int, shard: int = 0) -> str:
    node = w.state.revisions[Revision(revision)]
    made = node.shards[shard].update
    assert made is not None
    assert node.round is not None
    return keys.update_key("tiny", node.round, ShardId(shard), made.sha256)


def fetched_keys(store: MemoryStore) -> list[str]:
    found: list[str] = []
    store.before = lambda operation, key: found.append(key)
    return found


def test_the_head_is_what_the_leader_made_with_few_reads() -> None:
    w = world()
    store = copy_store(w.store)
    asked = fetched_keys(store)
    built = materialise(StoreReader(store), w.state, w.state.head)
    assert built.revision == 3
    assert built.notes == ()
    for shard in built.shards:
        ours = w.memory[shard.shard]
        assert np.array_equal(shard.weights.view(np.uint32), ours.weights.view(np.uint32))
        assert shard.momentum is not None
        assert ours.outer.momentum is not None
        assert np.array_equal(shard.momentum.view(np.uint32), ours.outer.momentum.view(np.uint32))
    assert sorted(asked) == sorted([snapshot(w, 2, 0), snapshot(w, 2, 1), update(w, 3, 0), update(w, 3, 1)])


def test_one_shard_reads_only_its_own_objects() -> None:
    w = world()
    store = copy_store(w.store)
    asked = fetched_keys(store)
    (only,) = materialise(StoreReader(store), w.state, w.state.head, [ShardId(1)]).shards
    assert only.shard == 1
    assert sorted(asked) == sorted([snapshot(w, 2, 1), update(w, 3, 1)])


def test_without_outer_momentum_only_the_weights_of_a_snapshot_are_read() -> None:
    w = eventful_world(1)
    reads: list[tuple[str, int]] = []

    class Counting(StoreReader):
        def fetch(self, key: str, **sizes: Any) -> bytes:
            assert not key.endswith(".safetensors"), "the outer residual is nobody's business but a validator's"
            return super().fetch(key, **sizes)

        def fetch_start(self, key: str, **sizes: int) -> bytes:
            reads.append((key, sizes["start_bytes"]))
            return super().fetch_start(key, **sizes)  # type: ignore[arg-type]

    (built,) = materialise(Counting(w.store), w.state, w.state.head).shards
    assert np.array_equal(built.weights.view(np.uint32), w.memory[ShardId(0)].weights.view(np.uint32))
    assert built.momentum is None
    ((key, start_bytes),) = reads
    assert key == snapshot(w, 2)
    assert start_bytes == pytest.approx(len(w.store.get(key, max_bytes=1 << 30).body) / 2, rel=0.05)


@pytest.mark.parametrize("damage", ["missing", "a weight", "header", "truncated", "longer"])
def test_bad_weights_fall_back_to_an_earlier_snapshot(damage: str) -> None:
    w = eventful_world(1)
    _damage(w.store, snapshot(w, 2), damage)
    built = materialise(StoreReader(w.store), w.state, w.state.head)
    assert "snapshot of revision 2" in built.notes[0]
    assert np.array_equal(built.shards[0].weights, w.memory[ShardId(0)].weights)


@pytest.mark.parametrize("damage", ["missing", "flipped", "truncated"])
def test_a_bad_snapshot_falls_back_to_an_earlier_one_and_says_so(damage: str) -> None:
    w = world(1)
    store = copy_store(w.store)
    _damage(store, snapshot(w, 2), damage)
    built = materialise(StoreReader(store), w.state, w.state.head)
    assert built.revision == 3
    assert len(built.notes) == 1
    assert "snapshot of revision 2" in built.notes[0]


@pytest.mark.parametrize("damage", ["missing", "flipped", "truncated"])
def test_a_bad_update_falls_back_to_the_parent_and_says_so(damage: str) -> None:
    w = world(1)
    store = copy_store(w.store)
    _damage(store, update(w, 3), damage)
    with pytest.raises(Rejected) as caught:
        materialise(StoreReader(store), w.state, w.state.head)
    assert caught.value.code == "revision_unavailable"
    built = materialise_newest(StoreReader(store), w.state)
    assert built.revision == 2
    assert "the step to revision 3" in built.notes[0]


def test_a_store_that_stays_away_is_no_reason_to_fall_back() -> None:
    w = world(1)
    store = copy_store(w.store)
    store.fail_next(Retryable("503"))
    with pytest.raises(Retryable):
        materialise_newest(StoreReader(store, policy=NO_RETRIES), w.state)


def test_nothing_left_is_said() -> None:
    w = world(1)
    with pytest.raises(Rejected) as caught:
        materialise_newest(StoreReader(MemoryStore()), w.state)
    assert caught.value.code == "revision_unavailable"
    with pytest.raises(Rejected) as caught:
        materialise(StoreReader(w.store), w.state, Revision(9))
    assert caught.value.code == "unknown_revision"


@pytest.mark.parametrize("without", ["nothing", "the snapshot of revision 2"])
def test_a_new_leader_rebuilds_the_outer_state_from_the_deltas(without: str) -> None:
    w = world(1)
    store = copy_store(w.store)
    if without != "nothing":
        store.delete(snapshot(w, 2))
    memory, notes = rebuild(StoreReader(store), w.state, w.state.head, ShardId(0))
    ours = w.memory[ShardId(0)]
    assert np.array_equal(memory.weights.view(np.uint32), ours.weights.view(np.uint32))
    assert np.array_equal(memory.outer.residual.view(np.uint32), ours.outer.residual.view(np.uint32))
    assert ours.outer.residual.any()
    assert len(notes) == (without != "nothing")


def _damage(store: MemoryStore, key: str, how: str) -> None:
    if how == "missing":
        store.delete(key)
    elif how == "flipped":
        store.corrupt(key, lambda body: body[:-1] + bytes([body[-1] ^ 1]))
    elif how in ("a weight", "header"):
        where = 4000 if how == "a weight" else 12
        store.corrupt(key, lambda body: body[:where] + bytes([body[where] ^ 1]) + body[where + 1 :])
    else:
        store.corrupt(key, lambda body: body + b"more" if how == "longer" else body[:-1])
