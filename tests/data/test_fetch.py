"""The dataset cache: fetched once, whole or not at all, shared by miners that start together."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from common import keys
from common.data.dataset import Dataset
from common.data.fetch import ensure_dataset
from common.errors import Rejected
from common.store.memory import MemoryStore
from common.store.reader import StoreReader
from tests.miner.leader import prepare_spec, put_dataset


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> tuple[MemoryStore, str]:
    folder = tmp_path_factory.mktemp("source")
    spec, store = prepare_spec(folder), MemoryStore()
    put_dataset(store, spec.data.dataset, folder / "data")
    return store, spec.data.dataset


def same(a: Dataset, b: Dataset) -> bool:
    return a.id == b.id and (a.train.read(0, 100) == b.train.read(0, 100)).all()


def test_it_is_fetched_once(source: tuple[MemoryStore, str], tmp_path: Path) -> None:
    store, dataset = source
    asked: list[str] = []
    store.before = lambda operation, key: asked.append(key)
    first = ensure_dataset(StoreReader(store), dataset, tmp_path)  # type: ignore[arg-type]
    fetched = len(asked)
    again = ensure_dataset(StoreReader(store), dataset, tmp_path)  # type: ignore[arg-type]
    store.before = None
    assert same(first, again)
    assert len(asked) == fetched == 4  # the index twice: first to read it, last to mark the folder complete


def test_a_damaged_file_is_fetched_again(source: tuple[MemoryStore, str], tmp_path: Path) -> None:
    store, dataset = source
    first = ensure_dataset(StoreReader(store), dataset, tmp_path)  # type: ignore[arg-type]
    path = next((tmp_path / "datasets" / dataset).glob("train-*"))
    tokens = first.train.read(0, 50)
    path.write_bytes(b"x" * path.stat().st_size)
    assert (ensure_dataset(StoreReader(store), dataset, tmp_path).train.read(0, 50) == tokens).all()  # type: ignore[arg-type]


def test_wrong_bytes_never_reach_the_cache(source: tuple[MemoryStore, str], tmp_path: Path) -> None:
    _, dataset = source
    store = MemoryStore()
    for info in source[0].list(""):
        store.put(info.key, source[0].get(info.key, max_bytes=1 << 20).body)
    key = next(info.key for info in store.list("data/") if info.key.endswith(".tokens"))
    store.corrupt(key, lambda body: b"x" + body[1:])
    with pytest.raises(Rejected, match="checksum_mismatch"):
        ensure_dataset(StoreReader(store), dataset, tmp_path)  # type: ignore[arg-type]
    assert not list((tmp_path / "datasets" / dataset).glob("*index.json"))
    assert keys.dataset_index_key(dataset) in {info.key for info in store.list("")}  # type: ignore[arg-type]


def test_two_miners_that_start_together_both_get_it(source: tuple[MemoryStore, str], tmp_path: Path) -> None:
    store, dataset = source
    meet = threading.Barrier(2)
    store.before = lambda operation, key: meet.wait(30) and None  # every fetch of one waits for the other's
    found: list[Dataset] = []
    threads = [
        threading.Thread(target=lambda: found.append(ensure_dataset(StoreReader(store), dataset, tmp_path)))  # type: ignore[arg-type]
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    store.before = None
    assert same(*found)
