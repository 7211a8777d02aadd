"""What probes leave in a bucket is no part of the run: nothing proves, copies or deletes it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from common import keys
from common.clock import ManualClock
from common.probes import MAX_PROBE_BYTES
from common.runlog.entries import StorageMoved
from common.runlog.moving import Buckets, move_run
from common.runlog.owner import append_owned
from common.runlog.proving import VerifyError
from common.runlog.retention import is_named, next_gc
from common.runlog.spent import Planned, is_spent
from common.runlog.state import RunState
from common.runlog.verify import verify_run
from common.runlog.writer import LogWriter
from common.spec import RetentionSpec
from common.store.memory import MemoryStore
from common.store.place import BucketPlace
from tests.runlog.support import MINERS, OWNER, no_patience, small_spec
from tests.runlog.world import World, begin_world, copy_store

OLD, NEW = BucketPlace("http://old.example", "bucket", ""), BucketPlace("http://new.example", "bucket", "")
UP, DOWN = (keys.probe_key("tiny", MINERS[0].hotkey, way) for way in ("up", "down"))


@pytest.fixture(scope="module")
def world() -> World:
    """Some rounds, of which retention has named the oldest."""
    made = begin_world(replace(small_spec(), retention=RetentionSpec(2, 2, grace_s=1.0)))
    while (ready := next_gc(made.state)) is None:
        made.run_round()
    made.append(ready)
    return made


def probed(world: World, size_bytes: int = 100) -> MemoryStore:
    store = copy_store(world.store)
    store.put(UP, b"x")
    store.put(DOWN, bytes(size_bytes))
    return store


def test_verify_finds_a_run_right_that_was_probed_and_counts_nothing_of_it(world: World) -> None:
    without, found = verify_run(copy_store(world.store), "tiny"), verify_run(probed(world), "tiny")
    assert found.objects == without.objects
    assert found.unreferenced == without.unreferenced
    assert found.suspicious == without.suspicious


def test_verify_names_what_no_probe_has_left(world: World) -> None:
    store = probed(world, MAX_PROBE_BYTES + 1)
    with pytest.raises(VerifyError) as caught:
        verify_run(store, "tiny")
    assert caught.value.key == DOWN


def test_retention_never_names_it(world: World) -> None:
    assert world.state.collections
    for key in (UP, DOWN):
        parts = keys.parse_key("tiny", key)
        assert parts is not None
        assert not is_named(world.state, parts)
        assert not is_spent(world.state, Planned(), parts)


def test_a_move_leaves_it_behind_also_when_a_probe_is_made_meanwhile(world: World) -> None:
    old, new = probed(world), MemoryStore()
    writer = LogWriter(old, world.spec, OWNER, ManualClock(), patience=no_patience(), here=lambda: OLD)
    entry = StorageMoved(OLD, NEW, public_read=True)

    def append(state: RunState, data: StorageMoved) -> RunState:
        old.put(UP, b"another probe")
        return append_owned(writer, state, data, "moves")

    buckets = Buckets(old, new, world.spec, lambda put, body: new.redeem_put(put.url, put.headers, body))

    def settle() -> None:
        old.put(DOWN, b"and one more")

    state = move_run(buckets, entry, append, settle, lambda _: None)
    verify_run(new, "tiny")
    there = {info.key for info in new.list("")}
    assert {info.key for info in old.list("")} - there == {keys.lease_key("tiny"), UP, DOWN}
    assert state.moved == entry
