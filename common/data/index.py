"""The index of a dataset: which token files it has, with their hashes and counts.

A dataset's identifier is the SHA-256 of its index's canonical bytes, so the run spec that names it fixes every token.
``decode_index`` is total and bounded, since a miner reads it from a bucket that it doesn't control.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from common import canonical
from common.errors import Rejected
from common.typed import from_json, to_json
from common.units import Sha256, check_sha256, sha256_hex

SCHEMA = 1
INDEX_NAME = "index.json"
MAX_INDEX_BYTES = 1 << 20
MAX_FILES = 4096
MAX_FILE_TOKENS = 1 << 28
TOKEN_BYTES = {"u1": 1, "u2": 2, "u4": 4}

Split = Literal["train", "heldout"]


@dataclass(frozen=True)
class TokenFile:
    """One file of tokens. Its name holds its hash."""

    split: Split
    sha256: Sha256
    tokens: int
    documents: int
    """Documents that end in this file."""

    def __post_init__(self) -> None:
        check_sha256(self.sha256)
        if not 1 <= self.tokens <= MAX_FILE_TOKENS or not 0 <= self.documents <= self.tokens:
            raise ValueError(f"a file has 1 to {MAX_FILE_TOKENS} tokens and no more documents than tokens")

    @property
    def name(self) -> str:
        """The file's name in the dataset's folder, and the end of its key in the bucket."""
        return f"{self.split}-{self.sha256}.tokens"


@dataclass(frozen=True)
class DatasetIndex:
    """What a prepared dataset consists of; ``files`` are in the order of the stream."""

    schema: int
    tokenizer: str
    vocab_size: int
    dtype: Literal["u1", "u2", "u4"]
    files: tuple[TokenFile, ...]

    def __post_init__(self) -> None:
        if self.schema != SCHEMA:
            raise ValueError(f"schema {self.schema} is not known to this version; update brigade")
        if not 1 <= self.vocab_size <= 256 ** TOKEN_BYTES[self.dtype]:
            raise ValueError(f"vocab_size {self.vocab_size} does not fit {self.dtype}")
        if not 1 <= len(self.files) <= MAX_FILES or len({f.name for f in self.files}) != len(self.files):
            raise ValueError(f"an index names 1 to {MAX_FILES} different files")

    def of(self, split: Split) -> tuple[TokenFile, ...]:
        """The files of one split."""
        return tuple(file for file in self.files if file.split == split)

    def tokens(self, split: Split) -> int:
        """Tokens of one split."""
        return sum(file.tokens for file in self.of(split))

    def size_bytes(self, file: TokenFile) -> int:
        """Exact size of one of the files."""
        return file.tokens * TOKEN_BYTES[self.dtype]


def encode_index(index: DatasetIndex) -> bytes:
    """The canonical bytes."""
    return canonical.dumps(to_json(index))


def decode_index(data: bytes) -> DatasetIndex:
    """Read foreign bytes. Raises ``Rejected('bad_index' | 'bad_json')`` for anything that is not an index."""
    return from_json(DatasetIndex, canonical.loads_object(data, MAX_INDEX_BYTES), "bad_index")


def require_index(data: bytes, expected: Sha256) -> DatasetIndex:
    """``decode_index`` of bytes that must be those of the dataset ``expected``. Raises ``Rejected('bad_index')``."""
    if sha256_hex(data) != expected:
        raise Rejected("bad_index", f"the index is not that of dataset {expected}")
    return decode_index(data)
