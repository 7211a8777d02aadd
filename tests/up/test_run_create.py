"""Creating a run: everything it begins with is in the bucket and on chain, once, whatever cut it off."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from common import keys
from common.chain.commitment import decode
from common.clock import ManualClock
from common.data.corpus import folder_corpus
from common.data.dataset import open_dataset
from common.data.fetch import ensure_dataset
from common.data.prepare import prepare
from common.data.tokenizer import tokenizer_named
from common.errors import OperatorError, Retryable, SetupError
from common.runlog.reader import LogReader
from common.spec import RunSpec, encode_spec, spec_hash
from common.store.config import StorageConfig
from common.store.memory import MemoryStore
from common.store.reader import StoreReader
from common.units import Coldkey
from tests.runlog.support import no_patience
from tests.support.memchain import MemoryWallet, MemoryWorld
from tests.support.specs import OWNER, tiny_spec
from validator.run_create import location_of, publish, read_dataset, start_run

STORAGE = StorageConfig("http://127.0.0.1:9000", "brigade", "key", "secret")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("text")
    for number in range(20):
        (root / f"{number}.txt").write_text(f"document {number} " * 200)
    out = root / "out"
    prepare(folder_corpus(root), tokenizer_named("bytes"), out)
    return out


@pytest.fixture
def spec(dataset: Path) -> RunSpec:
    made = tiny_spec()
    return replace(made, data=replace(made.data, dataset=read_dataset(dataset)[0]))


def start(store: MemoryStore, spec: RunSpec, dataset: Path) -> list[str]:
    said: list[str] = []
    start_run(store, spec, dataset, OWNER, ManualClock(), said.append, no_patience(1))
    return said


def contents(store: MemoryStore) -> dict[str, bytes]:
    return {info.key: store.get(info.key, max_bytes=1 << 20).body for info in store.list("")}


def test_a_miner_finds_all_it_needs(spec: RunSpec, dataset: Path, tmp_path: Path) -> None:
    store = MemoryStore()
    start(store, spec, dataset)
    reader = StoreReader(store)
    assert store.get(keys.spec_key(spec.run), max_bytes=1 << 20).body == encode_spec(spec)
    state = LogReader(reader, spec).catch_up()
    assert (state.head, state.next_seq) == (0, 1)
    fetched = ensure_dataset(reader, spec.data.dataset, tmp_path)
    assert fetched.train.total == open_dataset(dataset).train.total


def test_the_same_again_changes_nothing(spec: RunSpec, dataset: Path) -> None:
    store = MemoryStore()
    start(store, spec, dataset)
    before = contents(store)
    assert start(store, spec, dataset) == []
    assert contents(store) == before


def test_what_was_cut_off_is_continued(spec: RunSpec, dataset: Path) -> None:
    whole = MemoryStore()
    start(whole, spec, dataset)
    for key in contents(whole):
        store = MemoryStore()
        store.before = cut_at(key)
        with pytest.raises(Retryable):
            start(store, spec, dataset)
        store.before = None
        start(store, spec, dataset)
        assert contents(store).keys() == contents(whole).keys()


def cut_at(place: str) -> object:
    """The storage goes away for good before ``place`` is written."""

    def before(operation: str, key: str) -> None:
        if operation == "put" and key == place:
            raise Retryable("the storage went away")

    return before


def test_another_spec_under_the_same_name_is_refused(spec: RunSpec, dataset: Path) -> None:
    store = MemoryStore()
    start(store, spec, dataset)
    with pytest.raises(OperatorError, match="another name"):
        start(store, replace(spec, seed=1), dataset)


def test_a_damaged_dataset_is_not_uploaded(spec: RunSpec, tmp_path: Path, dataset: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in dataset.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    victim = next(copy.glob("train-*"))
    victim.write_bytes(b"x" + victim.read_bytes()[1:])
    with pytest.raises(SetupError, match="hash"):
        start(MemoryStore(), spec, copy)
    with pytest.raises(SetupError, match="brigade data prepare"):
        read_dataset(tmp_path / "nothing")


def test_the_location_is_committed_once(spec: RunSpec) -> None:
    wallet = MemoryWallet(OWNER.hotkey, Coldkey("5Cold"))
    world = MemoryWorld(wallet.coldkey_ss58)
    chain = world.port(wallet)
    location = location_of(spec, STORAGE)
    said: list[str] = []

    async def twice() -> int:
        netuid = await chain.register_subnet()
        for _ in range(2):
            await publish(chain, netuid, OWNER.hotkey, location, said.append)
        return netuid

    netuid = asyncio.run(twice())
    found = decode(world.subnet(netuid).commitments[OWNER.hotkey])
    assert found == location
    assert (found.run, found.spec_sha256, found.public_read) == ("demo", spec_hash(spec), True)
    assert len(said) == 1
