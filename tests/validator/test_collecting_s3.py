"""Retention on a real S3 server: killed at every point of its deletes, and while the owner copies the run.

The age of an entry is the server's own matter here, so a test asks until the server finds it old enough.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

import validator.collecting
from common import keys
from common.clock import SystemClock
from common.runlog.entries import StorageMoved
from common.runlog.lease import slot_age_s
from common.runlog.materialise import materialise
from common.runlog.moving import Buckets, move_run
from common.runlog.owner import append_owned
from common.runlog.retention import delete_after_s, is_named
from common.runlog.state import RunState
from common.runlog.verify import verify_run
from common.runlog.writer import LogWriter
from common.store.config import StorageConfig
from common.store.http import HttpClient
from common.store.place import BucketPlace
from common.store.reader import StoreReader
from common.store.s3 import S3Store
from common.store.seaweed import SeaweedServer
from common.store.transfer import upload
from common.timeouts import LEASE_S
from common.units import Revision
from miner.revisions import Held, bring_to_head
from tests.support.specs import OWNER
from tests.support.storage import QUICK, fresh_prefix, running_server
from tests.validator.retained import Retained
from tests.validator.test_churn import of, plans
from tests.validator.test_collecting import go_on, named_and_there
from tests.validator.test_following import WATCHER, may_lead
from tests.validator.test_kills import Killed
from tests.validator.world import WORK, World, drive
from validator.process import Validator, assemble

LOOK_S = 0.1
MOST_LOOKS = 600


class WatchedS3(S3Store):
    """A real bucket with what ``World`` wants of a store: a look at what is asked of it, and puts by URL."""

    def __init__(self, config: StorageConfig) -> None:
        super().__init__(config, policy=QUICK)
        self.before: Callable[[str, str], None] | None = None
        self._http = HttpClient()

    def get(self, key: str, **words: Any) -> Any:
        self._tell("get", key)
        return super().get(key, **words)

    def delete(self, key: str) -> None:
        self._tell("delete", key)
        super().delete(key)

    def redeem_put(self, url: str, headers: Mapping[str, str], body: bytes) -> str:
        return upload(url, headers, body, http=self._http)

    def _tell(self, operation: str, key: str) -> None:
        if self.before is not None:
            self.before(operation, key)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[SeaweedServer, StorageConfig]]:
    with running_server(tmp_path_factory.mktemp("storage")) as running:
        yield running


@pytest.fixture
def world(retained: Retained, server: tuple[SeaweedServer, StorageConfig], monkeypatch: pytest.MonkeyPatch) -> World:
    """What the log has just named is there; a batch is small enough for it to make several."""
    monkeypatch.setattr(validator.collecting, "BATCH", 2)
    return retained.copied(WatchedS3(fresh_prefix(server[1])))


async def led(world: World) -> Validator:
    """The validator, started again where it was, leads at once."""
    leader = world.validator()
    await leader.driver.step()
    assert leader.board.leadership.leading
    return leader


async def until_old_enough(world: World, leader: Validator) -> None:
    """By the clock of the server."""
    [entry] = world.log().collections
    for _ in range(MOST_LOOKS):
        await leader.board.leadership.renew(force=True)
        if slot_age_s(world.store, world.spec.run, entry.seq) >= delete_after_s(world.spec):
            return
        await asyncio.sleep(LOOK_S)
    raise AssertionError("the server's clock stands still")


async def collect(leader: Validator) -> None:
    """What a leader does between two rounds."""
    await leader.board.leadership.renew(force=True)
    await leader.driver.collector.at_boundary()
    await leader.driver.collector.idle()


async def taken_over(world: World) -> Validator:
    """The other validator, which has followed nothing so far, leads once the lease has run out."""
    other = assemble(may_lead(world))
    for _ in range(3):
        world.clock.advance(LEASE_S + 1)
        await other.driver.step()
    assert world.log().leader == WATCHER.hotkey
    return other


def there(world: World) -> set[str]:
    with world.unwatched():
        return {info.key for info in world.store.list("")}


def gone(world: World, before: set[str]) -> set[str]:
    """What is there no more, all of it named by the log."""
    state, missing = world.log(), before - there(world)
    parsed = [keys.parse_key(world.spec.run, key) for key in missing]
    assert all(parts is not None and is_named(state, parts) for parts in parsed)
    return missing


def nothing_else_is_missing(world: World) -> None:
    """Every revision that is kept, who follows from the oldest of them, and all that `brigade run verify` reads."""
    state, reader = world.log(), StoreReader(world.store)
    for revision in range(state.floor + 1, state.next_revision):
        materialise(reader, state, Revision(revision))
    oldest = materialise(reader, state, state.floor)
    held = Held(state.floor, state.revisions[state.floor].sha256, oldest.shards[0])
    assert bring_to_head(reader, state, held).sha256 == state.head_node.sha256
    verify_run(world.store, world.spec.run)


class Kill:
    """Kills whoever makes the first operation that is due, in whatever thread; the dead do nothing more."""

    def __init__(self, world: World, due: Callable[[int, str, str], bool]) -> None:
        """``due`` is told how many deletes were begun, and the operation and the key."""
        self._world, self._due = world, due
        self._lock = threading.Lock()
        self._deletes, self._struck = 0, False
        self.wait = threading.Event()
        self.wait.set()
        """While clear it lets the victim hang."""
        world.store.before = self._look

    def _look(self, operation: str, key: str) -> None:
        with self._lock:
            self._deletes += operation == "delete"
            self._struck = self._struck or self._due(self._deletes, operation, key)
            struck = self._struck
        if struck:
            self.wait.wait(60.0)
            raise Killed(f"before {operation} of {key}")

    async def bury(self, dead: Validator) -> None:
        """It died of nothing else; others live on."""
        await dead.driver.collector.idle()
        with pytest.raises(Killed):
            await dead.driver.collector.at_boundary()
        self._world.store.before = None


def test_leaders_killed_at_every_point_of_the_deletes_leave_the_rest_to_the_next(world: World) -> None:
    async def go() -> None:
        before, named = there(world), named_and_there(world)
        leader = await led(world)
        await until_old_enough(world, leader)

        # Between the entry and the first delete, while a miner hands in.
        kill = Kill(world, lambda deletes, operation, _: operation == "delete")
        kill.wait.clear()
        await leader.driver.step()
        await leader.driver.step()
        assert world.log().open_round is not None
        sender = world.miners[0]
        sender.beat(leader)
        sender.train(WORK)
        made = await sender.deliver(leader)
        kill.wait.set()
        await kill.bury(leader)
        assert gone(world, before) == set()

        # In the middle of a batch.
        leader = await led(world)
        await drive(world, leader, world.log().head + 1)
        [mine] = of(plans(world)[-1], sender)
        assert (mine.delta.sha256, mine.decision) == (made.manifest.delta.sha256, "accepted"), "it was pending"
        kill = Kill(world, lambda deletes, *_: deletes == 2)
        await collect(leader)
        await kill.bury(leader)
        assert len(gone(world, before)) == 1
        nothing_else_is_missing(world)

        # Between two batches.
        leader = await led(world)
        kill = Kill(world, lambda deletes, operation, key: deletes == 2 and operation == "get" and "/log/" in key)
        await collect(leader)
        await kill.bury(leader)
        assert len(gone(world, before)) == 3

        other = await taken_over(world)
        await go_on(world, other, world.log().head + 1)
        assert named <= gone(world, before)
        nothing_else_is_missing(world)
        assert not named & named_and_there(world)

    asyncio.run(go())


def test_a_server_that_is_killed_in_the_middle_of_a_batch_finds_its_leader_going_on(
    world: World, server: tuple[SeaweedServer, StorageConfig]
) -> None:
    async def go() -> None:
        before, named = there(world), named_and_there(world)
        leader = await led(world)
        await until_old_enough(world, leader)
        deletes: list[str] = []

        def look(operation: str, key: str) -> None:
            deletes.extend([key] * (operation == "delete"))
            if operation == "delete" and len(deletes) == 2:
                server[0].kill()

        world.store.before = look
        await collect(leader)
        world.store.before = None
        server[0].start(die_with_parent=True, ready_within_s=120.0)
        assert gone(world, before) == {deletes[0]}
        await collect(leader)
        await go_on(world, leader, world.log().head + 1)
        assert named <= gone(world, before)
        nothing_else_is_missing(world)
        assert world.log().term == leader.board.leadership.term

    asyncio.run(go())


def test_an_object_that_is_deleted_while_the_owner_copies_it_is_left_out(
    world: World, server: tuple[SeaweedServer, StorageConfig]
) -> None:
    old, new = world.store, WatchedS3(fresh_prefix(server[1]))
    here, late = BucketPlace("http://here.example", "bucket", ""), max(named_and_there(world))

    def look(operation: str, key: str) -> None:
        if (operation, key) == ("get", late):
            old.delete(late)

    def append(state: RunState, data: StorageMoved) -> RunState:
        writer = LogWriter(old, world.spec, OWNER, SystemClock(), here=lambda: here)
        return append_owned(writer, state, data, "moves")

    old.before = look
    move = StorageMoved(here, BucketPlace("http://there.example", "bucket", ""), public_read=True)
    buckets = Buckets(old, new, world.spec, lambda put, body: new.redeem_put(put.url, put.headers, body))
    moved = move_run(buckets, move, append, lambda: None, lambda _: None)
    before = there(world) - {keys.lease_key(world.spec.run)}
    world.store = new  # type: ignore[assignment]
    assert late not in before
    assert there(world) == before
    assert verify_run(new, world.spec.run).state == moved
