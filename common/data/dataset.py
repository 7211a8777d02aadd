"""A prepared dataset on disk: verified, memory-mapped, read by position.

Invariant: whatever is read comes from files whose size and hash the index names. All files of a split count as one
long sequence of tokens, in the index's order.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np
import numpy.typing as npt

from common.data.index import INDEX_NAME, MAX_INDEX_BYTES, DatasetIndex, Split, TokenFile, require_index
from common.errors import Rejected, SetupError
from common.units import Sha256, sha256_hex

READ_BYTES = 1 << 20
Samples = npt.NDArray[np.int64]


@dataclass(frozen=True)
class TokenSequence:
    """The tokens of one split across its files."""

    maps: tuple[npt.NDArray[np.integer], ...]
    ends: tuple[int, ...]

    @property
    def total(self) -> int:
        """Tokens in all."""
        return self.ends[-1] if self.ends else 0

    def read(self, start: int, count: int) -> Samples:
        """``count`` tokens from ``start`` as int64. Raises ValueError outside of the sequence."""
        if not 0 <= start <= start + count <= self.total:
            raise ValueError(f"tokens {start} to {start + count} of {self.total}")
        out = np.empty(count, dtype=np.int64)
        done = 0
        while done < count:
            which = bisect_right(self.ends, start + done)
            begin = self.ends[which] - self.maps[which].size
            piece = self.maps[which][start + done - begin :][: count - done]
            out[done : done + piece.size] = piece
            done += piece.size
        return out


@dataclass(frozen=True)
class Dataset:
    """An open dataset."""

    id: Sha256
    index: DatasetIndex
    train: TokenSequence
    heldout: TokenSequence


def open_dataset(folder: Path, expected: Sha256 | None = None, verify: bool = True) -> Dataset:
    """Open what ``prepare`` wrote or a download completed.

    ``expected`` is the identifier from the run spec. ``verify`` hashes every file. Raises SetupError, naming the file
    and what to do, if anything is missing or is not what the index says.
    """
    data = _read_index(folder)
    try:
        index = require_index(data, expected or sha256_hex(data))
    except Rejected as error:
        raise SetupError(f"{folder / INDEX_NAME}: {error.message}; prepare or download the dataset again") from error
    splits = {split: _open_split(folder, index, split, verify) for split in ("train", "heldout")}
    return Dataset(sha256_hex(data), index, splits["train"], splits["heldout"])


def _read_index(folder: Path) -> bytes:
    try:
        with (folder / INDEX_NAME).open("rb") as stream:
            return stream.read(MAX_INDEX_BYTES + 1)
    except FileNotFoundError:
        raise SetupError(f"{folder} holds no dataset: run `brigade data prepare` first") from None


def _open_split(folder: Path, index: DatasetIndex, split: Split, verify: bool) -> TokenSequence:
    files = index.of(split)
    maps = tuple(_open_file(folder / file.name, index, file, verify) for file in files)
    return TokenSequence(maps, tuple(accumulate(file.tokens for file in files)))


def _open_file(path: Path, index: DatasetIndex, file: TokenFile, verify: bool) -> npt.NDArray[np.integer]:
    if not path.is_file() or path.stat().st_size != index.size_bytes(file):
        raise SetupError(f"{path} is missing or incomplete; prepare or download the dataset again")
    if verify and _file_hash(path) != file.sha256:
        raise SetupError(f"{path} does not match its hash; delete it and prepare or download the dataset again")
    return np.memmap(path, dtype=np.dtype(index.dtype).newbyteorder("<"), mode="r")


def _file_hash(path: Path) -> Sha256:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(READ_BYTES):
            digest.update(block)
    return Sha256(digest.hexdigest())
