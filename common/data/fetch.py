"""A run's dataset on this machine: fetched once by hash, shared by all processes of the machine.

Every file is written beside its place, checked against its hash and renamed, the index last; so two processes that
fetch at the same moment both end with the same whole files, and a folder with an index is complete.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from loguru import logger

from common import keys
from common.data.dataset import Dataset, open_dataset
from common.data.index import INDEX_NAME, MAX_INDEX_BYTES, require_index
from common.errors import SetupError
from common.store.port import StartReader
from common.units import Sha256, format_bytes


class FileReader(StartReader, Protocol):
    """A ``StartReader`` that can also write into files."""

    def fetch_file(
        self, key: str, path: Path, *, max_bytes: int, sha256: Sha256 | None = None, size_bytes: int | None = None
    ) -> int:
        """Like ``fetch``, into the file ``path``; returns the size."""
        ...


def ensure_dataset(reader: FileReader, dataset: Sha256, cache: Path) -> Dataset:
    """Open the dataset from the cache, fetching what is missing or damaged. Blocks.

    Raises ``Retryable`` when the store stays away, ``Rejected`` for objects that are not what the spec names.
    """
    folder = cache / "datasets" / dataset
    if (folder / INDEX_NAME).exists():
        try:
            return open_dataset(folder, dataset)
        except SetupError as error:
            logger.warning("{}; fetching it again", error)
    _fetch(reader, dataset, folder)
    return open_dataset(folder, dataset)


def _fetch(reader: FileReader, dataset: Sha256, folder: Path) -> None:
    key = keys.dataset_index_key(dataset)
    index = require_index(reader.fetch(key, max_bytes=MAX_INDEX_BYTES, sha256=dataset), dataset)
    total = sum(index.size_bytes(file) for file in index.files)
    logger.info("fetching the dataset: {} files, {}", len(index.files), format_bytes(total))
    for file in index.files:
        size, where = index.size_bytes(file), keys.dataset_file_key(dataset, file.sha256)
        reader.fetch_file(where, folder / file.name, max_bytes=size, sha256=file.sha256, size_bytes=size)
    reader.fetch_file(key, folder / INDEX_NAME, max_bytes=MAX_INDEX_BYTES, sha256=dataset)
