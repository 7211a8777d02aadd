"""A validator's storage file changes while it runs: new keys are used once they work, and nothing else happens."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from loguru import logger

from common import keys
from common.chain.port import ChainPort
from common.errors import Retryable, SetupError
from common.runlog.entries import StorageMoved
from common.runlog.moving import Buckets, move_run
from common.runlog.owner import append_owned
from common.runlog.state import RunState
from common.runlog.writer import LogWriter
from common.store.config import StorageConfig, save_config
from common.store.memory import MemoryStore
from common.store.place import BucketPlace
from common.store.port import ObjectStore
from common.store.switching import SwitchingStore
from common.units import Coldkey
from tests.runlog.world import copy_store
from tests.support.memchain import MemoryWorld
from tests.support.specs import OWNER
from tests.validator.world import World, drive, steps
from validator.process import Validator
from validator.storagekeys import Moving, StorageKeys, moved_away

OLD = StorageConfig("http://storage.example", "bucket", "old-access", "old-secret", "prefix")
NEW = StorageConfig("http://storage.example", "bucket", "new-access", "new-secret", "prefix")
PLACE = BucketPlace("http://storage.example", "bucket", "prefix")


class Service:
    """A storage service over one set of objects, whose keys can be changed."""

    def __init__(self, store: MemoryStore) -> None:
        self.store = store
        self.good = {"old-access"}
        self.opened: list[str] = []

    def open(self, config: StorageConfig) -> ObjectStore:
        self.opened.append(config.access_key)
        if config.access_key not in self.good:
            raise SetupError("wrong storage credentials")
        return self.store


def keys_of(
    validator: Validator, path: Path, store: SwitchingStore, service: Service, chain: ChainPort | None = None
) -> StorageKeys:
    """The watcher of a validator's file."""
    board = validator.board
    return StorageKeys(
        path, store, board.journal, Moving(chain or MemoryWorld(Coldkey("sudo")).port(), board.leadership), service.open
    )


@pytest.fixture
def said() -> Iterator[list[str]]:
    lines: list[str] = []
    sink = logger.add(lambda message: lines.append(message.record["message"]), level="INFO")
    yield lines
    logger.remove(sink)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    save_config(OLD, tmp_path / "storage.json")
    return tmp_path / "storage.json"


def test_new_keys_are_used_once_they_work_and_the_old_ones_stay_until_then(
    world: World, path: Path, said: list[str]
) -> None:
    service, switching = Service(world.store), SwitchingStore(world.store, PLACE)

    async def go() -> None:
        await world.begin()
        validator = world.validator(until=2)
        await drive(world, validator, 1)
        watch = keys_of(validator, path, switching, service)
        await watch.look()
        assert service.opened == [], "nothing has changed"
        save_config(NEW, path)
        await watch.look()
        await watch.look()
        assert len([line for line in said if "wrong storage credentials" in line]) == 1, "told once"
        assert len([line for line in said if "stay in use" in line]) == 1
        service.good = {"new-access"}
        await watch.look()
        await watch.look()
        assert service.opened == ["new-access"] * 3
        assert [line for line in said if "in use from now on" in line]

    asyncio.run(go())
    assert not any("new-secret" in line for line in said)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "not JSON"),
        ('{"endpoint": "http://storage.example"}', "lacks a field"),
        (
            '{"endpoint": "http://storage.example", "bucket": "another", "access_key": "a", "secret_key": "b"}',
            "SubnetNotExists",
        ),
    ],
)
def test_a_file_that_makes_no_sense_is_told_in_one_line_and_ignored(
    world: World, path: Path, said: list[str], text: str, why: str
) -> None:
    service, switching = Service(world.store), SwitchingStore(world.store, PLACE)

    async def go() -> None:
        await world.begin()
        watch = keys_of(world.validator(until=1), path, switching, service)
        path.write_text(text)
        await watch.look()
        await watch.look()
        save_config(OLD, path)
        await watch.look()

    asyncio.run(go())
    told = [line for line in said if "not used" in line]
    assert len(told) == 1
    assert why in told[0]
    assert "\n" not in told[0]
    assert service.opened == []


def test_keys_of_a_bucket_with_another_log_are_not_used(world: World, path: Path, said: list[str]) -> None:
    async def go() -> None:
        await world.begin()
        validator = world.validator(until=1)
        await drive(world, validator, 1)
        other = copy_store(world.store)
        other.delete(keys.log_key("demo", validator.board.journal.state.next_seq - 1))
        service, switching = Service(other), SwitchingStore(world.store, PLACE)
        service.good = {"new-access"}
        watch = keys_of(validator, path, switching, service)
        save_config(NEW, path)
        await watch.look()
        switching.put("runs/demo/here", b"x")
        assert world.store.head("runs/demo/here") is not None

    asyncio.run(go())
    assert any("is not there as this process has read it" in line for line in said)


def test_the_driver_holds_while_keys_are_refused_and_goes_on_with_the_new_ones(world: World, path: Path) -> None:
    real = world.store
    service = Service(real)
    switching = SwitchingStore(real, PLACE)

    async def go() -> None:
        await world.begin()
        world.store = switching  # type: ignore[assignment]  # a store like any other
        validator = world.validator(until=1)
        await steps(world, validator, 4)
        refusing = MemoryStore()

        def refuse(operation: str, key: str) -> None:
            raise SetupError("wrong storage credentials")

        refusing.before = refuse
        switching.use(refusing, PLACE)
        world.clock.advance(4.0)
        await validator.driver.step()
        assert "wrong storage credentials" in validator.board.waiting_for
        service.good = {"new-access"}
        watch = keys_of(validator, path, switching, service)
        save_config(NEW, path)
        await watch.look()
        world.store = real
        await drive(world, validator, 1)

    asyncio.run(go())
    assert world.log().voids == ()
    assert world.log().term == 1


def test_a_gate_lets_nothing_through() -> None:
    store = MemoryStore()
    switching = SwitchingStore(store, PLACE)
    switching.put("a", b"1")
    switching.gate = lambda: "the run has moved"
    for call in (lambda: switching.put("b", b"2"), lambda: list(switching.list("")), lambda: switching.head("a")):
        with pytest.raises(Retryable, match="has moved"):
            call()
    assert [info.key for info in store.list("")] == ["a"]


def test_when_the_run_moves_the_driver_holds_for_keys_and_goes_on_in_the_new_bucket(world: World, path: Path) -> None:
    old, new = world.store, MemoryStore(world.clock)
    target = BucketPlace("http://elsewhere.example", "other", "")
    switching = SwitchingStore(old, PLACE)
    service = Service(new)
    service.good = {"new-access"}

    async def go() -> None:
        await world.begin()
        world.store = switching  # type: ignore[assignment]  # a store like any other
        validator = world.validator(until=2)
        world.store = old
        board = validator.board
        switching.gate = lambda: moved_away(board.journal.state, switching.place)
        await drive(world, validator, 1)
        await steps(world, validator, 2)
        watch = keys_of(validator, path, switching, service)
        move_by_owner(world, old, new, StorageMoved(PLACE, target, public_read=True))
        for _ in range(2):  # one renewal of the lease reads the log, the next finds nothing to do here
            world.clock.advance(4.0)
            await validator.driver.step()
        assert "waiting for keys" in board.waiting_for
        assert "http://elsewhere.example/other" in board.waiting_for
        save_config(replace(NEW, endpoint="http://elsewhere.example", bucket="other", prefix=""), path)
        await watch.look()
        assert switching.place == target
        world.store = new
        await drive(world, validator, 2)

    asyncio.run(go())
    state = world.log()
    assert (state.head, state.voids, state.rounds_aborted) == (2, (), 0)


def move_by_owner(world: World, old: MemoryStore, new: MemoryStore, move: StorageMoved) -> None:
    writer = LogWriter(old, world.spec, OWNER, world.clock, here=lambda: move.source)

    def append(state: RunState, data: StorageMoved) -> RunState:
        return append_owned(writer, state, data, "moves")

    move_run(
        Buckets(old, new, world.spec, lambda put, body: new.redeem_put(put.url, put.headers, body)),
        move,
        append,
        lambda: None,
        lambda _: None,
    )
