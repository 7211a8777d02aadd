"""Turn text into a dataset: token files named by their hashes, and the index that names them.

Invariants: the same text gives the same dataset identifier on every machine; a document is held out by the hash of its
content alone, whatever else is prepared with it; equal documents are kept once; the index is written last, so a folder
with an index is complete. The text is read twice, once to choose and once to write, so that memory holds one digest a
document and never the corpus.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from common.data.corpus import Corpus, documents
from common.data.index import INDEX_NAME, SCHEMA, DatasetIndex, Split, TokenFile, encode_index
from common.data.tokenizer import Tokenizer
from common.errors import OperatorError, SetupError
from common.files import PUBLIC, write_atomically
from common.units import Sha256, sha256_hex

HELD_OUT_SHARE = 1 / 32
FILE_TOKENS = 1 << 26
"""Length of a token file, which is held in memory while it is written; a longer document has a file of its own."""


@dataclass(frozen=True)
class Prepared:
    """What ``prepare`` made."""

    dataset: Sha256
    index: DatasetIndex
    folder: Path
    duplicates: int
    not_text: int
    """Parts that were skipped because they are no text."""


@dataclass(frozen=True)
class Selection:
    """The documents to keep, by digest, and which of them are held out."""

    kept: frozenset[bytes]
    held_out: frozenset[bytes]
    duplicates: int
    not_text: int


def prepare(corpus: Corpus, tokenizer: Tokenizer, folder: Path, max_bytes: int | None = None) -> Prepared:
    """Write the dataset of ``corpus`` into ``folder``; with ``max_bytes``, of that much of its text, chosen by hash.

    Raises OperatorError if there is too little text, or if the folder already holds another dataset.
    """
    selection = select(corpus, max_bytes)
    folder.mkdir(parents=True, exist_ok=True)
    writers: dict[Split, _SplitWriter] = {s: _SplitWriter(folder, s, tokenizer) for s in ("train", "heldout")}
    left = set(selection.kept)
    for text in documents(corpus):
        digest = b"" if text is None else _digest(text)
        if text is not None and digest in left:
            left.remove(digest)
            writers["heldout" if digest in selection.held_out else "train"].add(text)
    if left:
        raise SetupError("the text changed while it was read: prepare it again")
    files = (*writers["train"].close(), *writers["heldout"].close())
    index = DatasetIndex(SCHEMA, tokenizer.id, tokenizer.vocab_size, tokenizer.dtype, files)
    _write_index(folder, index)
    return Prepared(sha256_hex(encode_index(index)), index, folder, selection.duplicates, selection.not_text)


def select(corpus: Corpus, max_bytes: int | None = None) -> Selection:
    """Choose documents by the hash of their content. Raises OperatorError if there are fewer than two."""
    sizes: dict[bytes, int] = {}
    seen, not_text = 0, 0
    for text in documents(corpus):
        if text is None:
            not_text += 1
        else:
            seen += 1
            sizes[_digest(text)] = len(text.encode("utf-8"))
    kept = _thin(sizes, max_bytes)
    if len(kept) < 2:
        raise OperatorError("too little text: a dataset needs two different documents, one of them to hold out")
    return Selection(frozenset(kept), _held_out(kept), seen - len(sizes), not_text)


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8")).digest()


def _thin(sizes: dict[bytes, int], max_bytes: int | None) -> list[bytes]:
    """Digests to keep: in an order that has nothing to do with the held-out choice, while they fit."""
    if max_bytes is None:
        return list(sizes)
    kept: list[bytes] = []
    for digest in sorted(sizes, key=lambda d: d[8:]):
        if sizes[digest] <= max_bytes:
            max_bytes -= sizes[digest]
            kept.append(digest)
    return kept


def _held_out(kept: list[bytes]) -> frozenset[bytes]:
    """About ``HELD_OUT_SHARE`` of the documents; always at least one, and never all."""
    ordered = sorted(kept)
    below = int(HELD_OUT_SHARE * 2**64)
    chosen = [digest for digest in ordered if int.from_bytes(digest[:8], "big") < below]
    return frozenset((chosen or ordered[:1])[: len(ordered) - 1])


class _SplitWriter:
    """Writes one split as files of bounded length, each renamed to its hash when it is full."""

    def __init__(self, folder: Path, split: Split, tokenizer: Tokenizer) -> None:
        self._folder, self._split, self._tokenizer = folder, split, tokenizer
        self._dtype = np.dtype(tokenizer.dtype).newbyteorder("<")
        self._done: list[TokenFile] = []
        self._pieces: list[bytes] = []
        self._tokens = 0
        self._documents = 0

    def add(self, text: str) -> None:
        """Append one document and its end."""
        tokens = np.append(self._tokenizer.encode(text), self._tokenizer.end_of_document).astype(self._dtype)
        if self._tokens + tokens.size > FILE_TOKENS:
            self._finish_file()
        self._pieces.append(tokens.tobytes())
        self._tokens += tokens.size
        self._documents += 1

    def close(self) -> tuple[TokenFile, ...]:
        """The split's files in order."""
        if self._documents:
            self._finish_file()
        return tuple(self._done)

    def _finish_file(self) -> None:
        data = b"".join(self._pieces)
        file = TokenFile(self._split, sha256_hex(data), self._tokens, self._documents)
        write_atomically(self._folder / file.name, data, PUBLIC)
        self._done.append(file)
        self._pieces, self._tokens, self._documents = [], 0, 0


def _write_index(folder: Path, index: DatasetIndex) -> None:
    path, data = folder / INDEX_NAME, encode_index(index)
    if path.exists() and path.read_bytes() != data:
        raise OperatorError(f"{folder} already holds another dataset: choose an empty folder")
    write_atomically(path, data, PUBLIC)
