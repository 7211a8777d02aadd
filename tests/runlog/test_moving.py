"""Moving a run to another bucket: whole there, ended here, and continued by the same call wherever it was cut off."""

from __future__ import annotations

from dataclasses import replace

import pytest

from common import keys
from common.chain.headcommit import CommittedHead
from common.clock import ManualClock
from common.errors import OperatorError, Retryable
from common.runlog.entries import NO_PREVIOUS, StorageMoved
from common.runlog.moving import Buckets, move_run
from common.runlog.owner import append_owned
from common.runlog.reader import LogReader
from common.runlog.replay import apply
from common.runlog.state import RunState
from common.runlog.verify import verify_run
from common.runlog.writer import LogWriter
from common.store.memory import MemoryStore
from common.store.multipart import PART_BYTES
from common.store.place import BucketPlace
from common.store.reader import StoreReader
from tests.runlog.support import ALICE, OWNER, after, led, no_patience, opened, slot
from tests.runlog.world import World, copy_store, eventful_world

OLD = BucketPlace("http://old.example", "bucket", "")
NEW = BucketPlace("https://new.example:8333", "other-bucket", "runs/here")
MOVE = StorageMoved(OLD, NEW, public_read=True)


@pytest.fixture(scope="module")
def world() -> World:
    return eventful_world()


def move(
    old: MemoryStore, new: MemoryStore, world: World, entry: StorageMoved = MOVE, part_bytes: int = PART_BYTES
) -> RunState:
    """The owner's command on two stores."""
    writer = LogWriter(old, world.spec, OWNER, ManualClock(), patience=no_patience(), here=lambda: entry.source)

    def append(state: RunState, data: StorageMoved) -> RunState:
        return append_owned(writer, state, data, "moves")

    buckets = Buckets(old, new, world.spec, lambda put, body: new.redeem_put(put.url, put.headers, body), part_bytes)
    return move_run(buckets, entry, append, lambda: None, lambda _: None)


def read(store: MemoryStore, world: World, here: BucketPlace) -> RunState:
    return LogReader(StoreReader(store), world.spec, lambda: here).catch_up()


def test_everything_is_in_the_new_bucket_and_the_log_goes_on_there(world: World) -> None:
    old, new = copy_store(world.store), MemoryStore()
    state = move(old, new, world)
    assert state.moved == MOVE
    assert read(new, world, NEW) == read(old, world, OLD) == state
    report = verify_run(new, "tiny")
    assert report.state == state
    there = {info.key for info in new.list("")}
    assert {info.key for info in old.list("")} - there == {keys.lease_key("tiny")}
    alice = LogWriter(new, world.spec, ALICE, ManualClock(), patience=no_patience(), here=lambda: NEW)
    assert alice.append(state, opened(state), "goes on", state.term).open_round is not None
    assert move(old, new, world) == state, "typed again it finds everything done"


def test_nothing_counts_behind_the_move_in_the_bucket_that_was_left(world: World) -> None:
    old, new = copy_store(world.store), MemoryStore()
    state = move(old, new, world)
    straggler = LogWriter(old, world.spec, ALICE, ManualClock(), patience=no_patience(), here=lambda: OLD)
    with pytest.raises(Retryable, match="has moved to"):
        straggler.append(state, opened(state), "too late", state.term)
    old.put(keys.log_key("tiny", state.next_seq), slot(state, opened(state), ALICE, spec=world.spec))
    assert read(old, world, OLD) == state
    assert read(new, world, NEW) == state
    head = CommittedHead("tiny", state.next_seq, NO_PREVIOUS)
    for heads in (None, {ALICE.hotkey: head}):
        report = verify_run(old, "tiny", heads=heads, place=OLD)
        assert report.state == state, "the other bucket has what comes after, and the heads of it"


def test_a_leader_that_writes_while_the_owner_copies_is_copied_too(world: World) -> None:
    old, new = copy_store(world.store), MemoryStore()
    before = read(old, world, OLD)
    alice = LogWriter(old, world.spec, ALICE, ManualClock(), patience=no_patience(), here=lambda: OLD)
    written = False

    def write(operation: str, key: str) -> None:
        nonlocal written
        if not written and key == keys.log_key("tiny", before.next_seq - 1):
            written = True
            alice.append(before, opened(before), "meanwhile", before.term)

    new.before = write
    state = move(old, new, world)
    assert written
    assert state.next_seq == before.next_seq + 2
    assert state.open_round is not None
    assert read(new, world, NEW) == state


@pytest.mark.parametrize("part_bytes", [PART_BYTES, 1000])
def test_cut_off_at_any_point_the_same_command_continues(world: World, part_bytes: int) -> None:
    old, new = copy_store(world.store), MemoryStore(min_part_bytes=part_bytes)
    operations, cut_at = 0, 0

    def count(operation: str, key: str) -> None:
        nonlocal operations
        operations += 1
        if operations == cut_at:
            raise KeyboardInterrupt

    old.before = new.before = count
    while True:
        operations, cut_at = 0, cut_at + 1
        try:
            state = move(old, new, world, part_bytes=part_bytes)
        except KeyboardInterrupt:
            continue
        break
    old.before = new.before = None
    assert cut_at > 20, "it was cut off many times"
    assert state.voids == world.state.voids
    assert read(new, world, NEW) == read(old, world, OLD) == state
    verify_run(new, "tiny")
    assert list(new.list_uploads("")) == [], "no upload is left behind"


@pytest.mark.parametrize("part", [1, 2])
def test_a_large_object_that_is_deleted_while_its_parts_are_copied_leaves_nothing_behind(
    world: World, part: int
) -> None:
    old, new = copy_store(world.store), MemoryStore(min_part_bytes=1000)
    large = max(old.list(keys.run_prefix("tiny")), key=lambda info: info.size_bytes)
    reads = 0

    def delete(operation: str, key: str) -> None:
        nonlocal reads
        reads += (operation, key) == ("get", large.key)
        if reads == part and key == large.key and operation == "get":
            old.delete(large.key)

    old.before = delete
    move(old, new, world, part_bytes=1000)
    assert reads == part
    assert large.size_bytes > 2000
    assert new.head(large.key) is None
    assert list(new.list_uploads("")) == []


def test_another_runs_bucket_or_another_move_is_refused(world: World) -> None:
    old, new = copy_store(world.store), MemoryStore()
    new.put(keys.log_key("tiny", 1), b"something else")
    with pytest.raises(OperatorError, match="prefix nothing is under"):
        move(old, new, world)
    assert read(old, world, OLD).moved is None
    move(old, MemoryStore(), world)
    with pytest.raises(OperatorError, match="continue that move"):
        move(old, MemoryStore(), world, replace(MOVE, target=replace(NEW, prefix="elsewhere")))


@pytest.mark.parametrize(
    "bad",
    [
        replace(MOVE, target=OLD),
        replace(MOVE, target=replace(NEW, endpoint="ftp://new.example")),
        replace(MOVE, target=replace(NEW, bucket="B")),
        replace(MOVE, target=replace(NEW, prefix="a" * 200)),
    ],
)
def test_a_place_that_is_none_or_the_runs_own_counts_for_nothing(bad: StorageMoved) -> None:
    state = led()
    step = apply(state, slot(state, bad, OWNER))
    assert step.void is not None
    assert step.void.code == "bad_transition"
    assert apply(state, slot(state, MOVE, ALICE)).void is not None, "only the owner moves a run"


def test_a_run_moves_on_and_never_back() -> None:
    third = replace(NEW, prefix="third")
    state = after(led(), lambda _: MOVE, lambda _: StorageMoved(NEW, third, True), signer=OWNER)
    assert [state.left(place) for place in (OLD, NEW, third, None)] == [False, True, False, False]
    for back in (StorageMoved(third, OLD, True), StorageMoved(NEW, replace(NEW, prefix="x"), True)):
        assert apply(state, slot(state, back, OWNER)).void is not None
