"""A validator without keys follows the run to another bucket, and reads nothing behind the move in the old one."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path

from common import keys
from common.chain.commitment import RunLocation, encode
from common.data.dataset import Dataset
from common.runlog.entries import LeadersChanged, StorageMoved
from common.runlog.owner import append_owned
from common.runlog.writer import LogWriter
from common.spec import spec_hash
from common.store.memory import MemoryStore
from common.store.place import BucketPlace
from common.store.reader import HttpReader, StoreReader
from common.units import Coldkey, Sha256
from tests.support.memchain import MemoryWallet
from tests.support.specs import OWNER
from tests.validator.test_following import WATCHER, caught_up, may_lead
from tests.validator.test_storagekeys import move_by_owner
from tests.validator.world import AT_ONCE, World, drive
from validator.process import Validator, assemble
from validator.publicplace import PublicStore
from validator.reports_place import FolderReports

FROM = BucketPlace("http://old.example", "bucket", "")
TO = BucketPlace("http://new.example", "other", "runs")


class Internet(HttpReader):
    """Plain GETs of buckets in memory."""

    def __init__(self, buckets: dict[str, MemoryStore]) -> None:
        super().__init__(FROM.base_url)
        self.buckets, self.at = buckets, FROM.base_url

    def move(self, base_url: str) -> None:
        self.at = base_url

    def fetch(self, key: str, *, max_bytes: int, sha256: Sha256 | None = None, size_bytes: int | None = None) -> bytes:
        return StoreReader(self.buckets[self.at]).fetch(key, max_bytes=max_bytes, sha256=sha256, size_bytes=size_bytes)


def location(world: World, place: BucketPlace) -> RunLocation:
    return RunLocation(world.spec.run, spec_hash(world.spec), place.endpoint, place.bucket, place.prefix, True)


def watching(world: World, net: Internet, folder: Path) -> Validator:
    store, reports = PublicStore(location(world, FROM), net), FolderReports(folder, world.spec.run, WATCHER.hotkey)
    return assemble(dataclasses.replace(may_lead(world), store=store, reports=reports))


def test_it_goes_where_the_log_says_and_where_the_chain_says(dataset: Dataset, tmp_path: Path) -> None:
    world = World(dataset)
    new = MemoryStore(world.clock)
    net, late = (Internet({FROM.base_url: world.store, TO.base_url: new}) for _ in range(2))

    async def go() -> None:
        await world.begin()
        await drive(world, world.validator(), 1)
        validator, other = watching(world, net, tmp_path / "a"), watching(world, late, tmp_path / "b")
        await caught_up(validator, 1)
        move_by_owner(world, world.store, new, StorageMoved(FROM, TO, public_read=True))
        moved = validator.board.journal.state.next_seq
        world.store.put(keys.log_key(world.spec.run, moved + 1), b"behind the move")
        await validator.driver.step()
        assert validator.board.journal.state.next_seq == moved + 1
        writer = LogWriter(new, world.spec, OWNER, world.clock, patience=AT_ONCE)
        append_owned(writer, writer.catch_up(), LeadersChanged((WATCHER.hotkey,)), "another leads")

        assert validator.public_place is not None
        await validator.public_place.look()
        await validator.driver.step()
        assert net.at == TO.base_url
        assert validator.board.journal.state.next_seq == moved + 2
        assert validator.board.journal.state.voids == ()

        owner = MemoryWallet(OWNER.hotkey, Coldkey("owner-cold"))
        await world.chain_world.port(owner).set_commitment(world.spec.netuid, encode(location(world, TO)))
        late.buckets[FROM.base_url] = MemoryStore(world.clock)  # the old bucket has gone before it was read
        assert other.public_place is not None
        await other.public_place.look()
        assert late.at == FROM.base_url
        world.clock.advance(120.0)
        await other.public_place.look()
        await other.driver.step()
        assert other.board.journal.state.next_seq == moved + 2

    asyncio.run(go())
