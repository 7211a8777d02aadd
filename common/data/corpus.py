"""Where text comes from: files and folders, read as documents in an order that every machine repeats.

A file is one document unless it is long: then it is cut at line ends into parts, so that one big file still has parts
to hold out. Files that are not text are skipped and counted. By default the corpus is the source and documentation of
Python's own standard library, which every machine has.
"""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from common.errors import OperatorError

SKIPPED_FOLDERS = frozenset({"__pycache__", "node_modules"})
STDLIB_SKIPPED_FOLDERS = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test"})
STDLIB_SUFFIXES = (".py", ".txt", ".rst", ".md")
SMALLEST_PART_BYTES = 4 * 1024
LARGEST_PART_BYTES = 64 * 1024
WANTED_PARTS = 64
MAX_REPLACED_SHARE = 0.1
"""A part with more undecodable characters than this is no text."""


@dataclass(frozen=True)
class Corpus:
    """Text files in a fixed order, with their total size on disk."""

    files: tuple[Path, ...]
    size_bytes: int

    @property
    def part_bytes(self) -> int:
        """Size at which a file is cut: small enough that even a small corpus has parts to hold out."""
        return max(SMALLEST_PART_BYTES, min(LARGEST_PART_BYTES, self.size_bytes // WANTED_PARTS))


def stdlib_corpus() -> Corpus:
    """Python's standard library without its tests and without what was installed beside it."""
    root = Path(sysconfig.get_paths()["stdlib"])
    found = _walk(root, STDLIB_SKIPPED_FOLDERS) if root.is_dir() else []
    return _corpus([path for path in found if path.suffix in STDLIB_SUFFIXES], f"Python's library at {root}")


def folder_corpus(path: Path) -> Corpus:
    """One text file, or all files below a folder except hidden ones. Raises OperatorError if there is none."""
    if not path.exists():
        raise OperatorError(f"{path} does not exist: name a text file or a folder of text files")
    return _corpus([path] if path.is_file() else _walk(path, frozenset()), str(path))


def documents(corpus: Corpus) -> Iterator[str | None]:
    """The corpus's documents in order; None stands for a part that is no text."""
    for path in corpus.files:
        for part in _parts(path, corpus.part_bytes):
            text = clean_text(part)
            if text != "":
                yield text


def clean_text(raw: bytes) -> str | None:
    """UTF-8 text with LF line ends and no NUL; undecodable bytes become U+FFFD. None if this is not text."""
    if b"\0" in raw:
        return None
    text = raw.decode("utf-8-sig", errors="replace")
    if text.count("\ufffd") > MAX_REPLACED_SHARE * len(text):
        return None
    return text.replace("\r\n", "\n").replace("\r", "\n").strip("\n")


def _corpus(files: list[Path], where: str) -> Corpus:
    size_bytes = sum(path.stat().st_size for path in files)
    if size_bytes == 0:
        raise OperatorError(f"{where} holds no text: name a text file or a folder of text files")
    return Corpus(tuple(files), size_bytes)


def _walk(root: Path, skipped: frozenset[str]) -> list[Path]:
    """Regular files below ``root`` by relative path; hidden ones and links to folders are left out."""
    found: list[Path] = []
    for folder, folders, names in os.walk(root):
        folders[:] = [f for f in folders if not f.startswith(".") and f not in skipped | SKIPPED_FOLDERS]
        found += [Path(folder, name) for name in names if not name.startswith(".")]
    return sorted((p for p in found if p.is_file()), key=lambda p: p.relative_to(root).as_posix())


def _parts(path: Path, part_bytes: int) -> Iterator[bytes]:
    """The file in parts of about ``part_bytes``, cut after a line end where one is near."""
    with path.open("rb") as stream:
        while part := stream.read(part_bytes):
            yield part + stream.readline(part_bytes)
