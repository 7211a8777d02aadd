"""Files that appear whole: written beside their place, synced and renamed; and locks that die with their process.

Invariant: whoever reads a path while another process writes it, or after a crash or a power cut at any instruction,
finds the old content or the new one, never a mixture, and never a file with wider permissions than asked for.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from common.errors import BrigadeError, SetupError
from common.units import format_bytes

PRIVATE, PUBLIC = 0o600, 0o644


@contextmanager
def atomic_file(path: Path, size_bytes: int, mode: int = PRIVATE) -> Iterator[BinaryIO]:
    """A new file that takes the place of ``path`` when the block ends well, and vanishes when it does not.

    Raises SetupError when the disk has no room for ``size_bytes``.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    _check_room(path, size_bytes)
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name[:100]}.", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), mode)
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def write_atomically(path: Path, data: bytes, mode: int = PRIVATE) -> None:
    """Replace ``path`` by ``data``; folders on the way are made. Raises as ``atomic_file``."""
    with atomic_file(path, len(data), mode) as file:
        file.write(data)


def remove_leftovers(folder: Path, name: str) -> None:
    """Delete what writes to files of this name (a glob pattern) left in ``folder`` when their process was killed.

    For whoever holds the folder alone: a write that goes on would lose its file.
    """
    for path in folder.glob(f".{name}.????????"):  # what mkstemp makes of the prefix
        path.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Make the names in ``folder`` durable: without it a rename may be undone by a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def lock_file(path: Path, taken: BrigadeError) -> BinaryIO:
    """Hold ``path`` until the returned file is closed or this process ends, however it ends.

    Raises ``taken`` when another process holds it, OSError when it can't be opened.
    """
    file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, PRIVATE), "r+b")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise taken from None
    return file


def _check_room(path: Path, size_bytes: int) -> None:
    free_bytes = shutil.disk_usage(path.parent).free
    if free_bytes < size_bytes:
        need, have = format_bytes(size_bytes), format_bytes(free_bytes)
        raise SetupError(f"no room for {path.name} in {path.parent}: {need} needed, {have} free; make room")
