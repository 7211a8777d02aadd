"""Retention while the owner moves the run to another bucket: in whatever order, nothing is lost and nothing stays."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from common import keys
from common.blocking import in_thread
from common.runlog.entries import StorageMoved
from common.runlog.materialise import materialise
from common.runlog.moving import Buckets, move_run
from common.runlog.owner import append_owned
from common.runlog.retention import delete_after_s
from common.runlog.state import RunState
from common.runlog.verify import verify_run
from common.runlog.writer import LogWriter
from common.store.config import save_config
from common.store.memory import MemoryStore
from common.store.place import BucketPlace
from common.store.reader import StoreReader
from common.store.switching import SwitchingStore
from common.units import Revision
from tests.support.specs import OWNER
from tests.validator.retained import Retained
from tests.validator.test_collecting import go_on, named_and_there
from tests.validator.test_storagekeys import NEW, OLD, PLACE, Service, keys_of
from tests.validator.world import World
from validator.storagekeys import moved_away

TARGET = BucketPlace("http://elsewhere.example", "other", "")
MOVE = StorageMoved(PLACE, TARGET, public_read=True)
Act = Callable[[], None]


class Moving:
    """A run whose leader has named objects, and an owner who moves it."""

    def __init__(self, world: World, path: Path) -> None:
        self.world = world
        self.old = world.store
        self.new = MemoryStore(world.clock)
        self.source = View(self.old)
        """The old bucket as the owner's command sees it."""
        self.switching = SwitchingStore(self.old, PLACE)
        self.path = path
        save_config(OLD, path)
        self.validator = world.validator(store=self.switching)
        journal, switching = self.validator.board.journal, self.switching
        self.switching.gate = lambda: moved_away(journal.state, switching.place)
        service = Service(self.new)
        service.good = {NEW.access_key}
        self.keys = keys_of(self.validator, path, self.switching, service)
        self._loop = asyncio.get_running_loop()

    async def collect(self) -> None:
        """What the leader does between two rounds."""
        await self.validator.board.leadership.renew(force=True)
        await self.validator.driver.collector.at_boundary()
        await self.validator.driver.collector.idle()

    def meanwhile(self) -> None:
        """The same while the owner's command, in its thread, is in the middle of something."""
        asyncio.run_coroutine_threadsafe(self.collect(), self._loop).result()

    async def move(self, say: Callable[[str], None] = lambda _: None, moved: Act = lambda: None) -> RunState:
        """The owner's command; ``moved`` is called when the log says so and nobody has read it."""
        writer = LogWriter(self.old, self.world.spec, OWNER, self.world.clock, here=lambda: PLACE)

        def append(state: RunState, data: StorageMoved) -> RunState:
            return append_owned(writer, state, data, "moves")

        new = self.new
        buckets = Buckets(
            self.source, new, self.world.spec, lambda put, body: new.redeem_put(put.url, put.headers, body)
        )
        return await in_thread(lambda: move_run(buckets, MOVE, append, moved, say))

    async def go_over(self) -> None:
        """The validator reads the move, and its operator gives it the new bucket's keys."""
        for _ in range(2):
            self.world.clock.advance(4.0)
            await self.validator.driver.step()
        assert "waiting for keys" in self.validator.board.waiting_for
        save_config(replace(NEW, endpoint=TARGET.endpoint, bucket=TARGET.bucket, prefix=TARGET.prefix), self.path)
        await self.keys.look()
        assert self.switching.place == TARGET
        self.world.store = self.new


class View(MemoryStore):
    """The objects of another store, with a look of its own at what is asked."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__()
        self.__dict__.update(store.__dict__)
        self.before = None


def once(action: Act, wanted: Callable[[str, str], bool]) -> Callable[[str, str], None]:
    """A look that acts before the first operation that is ``wanted``."""
    left = [action]

    def look(operation: str, key: str) -> None:
        if left and wanted(operation, key):
            left.pop()()

    return look


async def led(world: World, path: Path) -> Moving:
    moving = Moving(world, path)
    await moving.validator.driver.step()
    assert moving.validator.board.leadership.leading
    return moving


async def due(retained: Retained, path: Path) -> tuple[Moving, set[str]]:
    """What the log has named is old enough to go."""
    moving = await led(retained.copied(), path)
    moving.world.clock.advance(delete_after_s(moving.world.spec) + 1.0)
    return moving, named_and_there(moving.world)


async def nothing_lost_and_nothing_left(moving: Moving, named: set[str]) -> set[str]:
    """From the new bucket alone the run goes on, and what came along of ``named``, which is returned, goes."""
    world, validator = moving.world, moving.validator
    there = named & named_and_there(world)
    await go_on(world, validator, world.log().head + 1)
    assert not named & named_and_there(world)
    for revision in range(world.log().floor, world.log().next_revision):
        materialise(StoreReader(world.store), world.log(), Revision(revision))
    report = verify_run(world.store, world.spec.run)
    assert (report.state.voids, report.state.rounds_aborted) == ((), 0)
    assert report.state.floor > 0
    assert (await moving.move()).moved == MOVE, "typed again it finds everything done"
    return there


def test_what_is_deleted_between_the_listing_and_its_copy_stays_away(retained: Retained, tmp_path: Path) -> None:
    async def go() -> None:
        moving, named = await due(retained, tmp_path / "storage.json")
        late = max(named)
        moving.source.before = once(moving.meanwhile, lambda operation, key: (operation, key) == ("get", late))
        await moving.move()
        await moving.go_over()
        assert late not in await nothing_lost_and_nothing_left(moving, named)

    asyncio.run(go())


def test_what_is_deleted_when_it_had_been_copied_is_deleted_in_the_new_bucket_too(
    retained: Retained, tmp_path: Path
) -> None:
    """The same process goes on, which has deleted all of it once."""

    async def go() -> None:
        moving, named = await due(retained, tmp_path / "storage.json")
        said: list[str] = []

        def say(text: str) -> None:
            said.append(text)
            if len(said) == 1:
                moving.meanwhile()

        await moving.move(say)
        assert not named & {info.key for info in moving.old.list("")}
        await moving.go_over()
        assert await nothing_lost_and_nothing_left(moving, named) == named

    asyncio.run(go())


def test_who_has_read_the_move_deletes_nothing_more_where_it_was(retained: Retained, tmp_path: Path) -> None:
    async def go() -> None:
        moving, named = await due(retained, tmp_path / "storage.json")
        await moving.move(moved=moving.meanwhile)
        assert named <= {info.key for info in moving.old.list("")}
        await moving.go_over()
        assert await nothing_lost_and_nothing_left(moving, named) == named

    asyncio.run(go())


def test_a_batch_that_the_move_interrupts_is_finished_in_the_new_bucket(retained: Retained, tmp_path: Path) -> None:
    async def go() -> None:
        moving, named = await due(retained, tmp_path / "storage.json")
        loop, deletes = asyncio.get_running_loop(), list[str]()

        def look(operation: str, key: str) -> None:
            if operation != "delete":
                return
            deletes.append(key)
            if len(deletes) == 3:
                asyncio.run_coroutine_threadsafe(moving.move(), loop).result()
                asyncio.run_coroutine_threadsafe(moving.validator.board.journal.catch_up(), loop).result()

        moving.old.before = look
        await moving.collect()
        moving.old.before = None
        assert len(deletes) == 3
        await moving.go_over()
        assert await nothing_lost_and_nothing_left(moving, named) == named - {*deletes[:2]}

    asyncio.run(go())


def test_an_entry_that_is_written_while_the_owner_copies_is_carried_out_in_the_new_bucket(
    retained: Retained, tmp_path: Path
) -> None:
    async def go() -> None:
        world = retained.copied(named=False)
        moving = await led(world, tmp_path / "storage.json")

        def name() -> None:
            for _ in range(2):  # the floor's snapshot is proved first
                moving.meanwhile()
            assert moving.validator.board.journal.state.collections

        spec_key = keys.spec_key(world.spec.run)
        moving.source.before = once(name, lambda operation, key: operation == "get" and key == spec_key)
        assert not world.log().collections
        await moving.move()
        named = named_and_there(world)
        assert named
        await moving.go_over()
        assert await nothing_lost_and_nothing_left(moving, named) == named

    asyncio.run(go())
