"""What makes a block durable: an append-only journal of changed blocks, and a snapshot that it starts from.

One line per block that changed something: the sha256 of the rest of the line, then JSON. A block is part of the
chain once its line is fsynced; a torn last line (the machine died while writing) is cut off on opening, since
nobody was told of that block. A bad line before the last is damage and refused. Empty blocks write nothing.

A journal that has become long is folded into the snapshot, at opening and while the chain runs: the new snapshot is
renamed into place first, then the journal is emptied; lines at or below the snapshot's block are ignored, so a crash
between the two loses nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.chain.local.storage import Changes
from common.errors import SetupError
from common.files import sync_folder, write_atomically

FOLD_BYTES = 8 << 20
CHECK_CHARS = 16


@dataclass(frozen=True)
class BlockRecord:
    """One changed block: its number, the encoded extrinsics and events, and what it wrote."""

    number: int
    digest: bytes  # of this block and, through ``parent``, of all changed blocks before it
    extrinsics: tuple[bytes, ...]
    events: bytes
    changes: Changes

    def to_line(self) -> bytes:
        """The journal's line."""
        body = json.dumps(
            {
                "block": self.number,
                "digest": self.digest.hex(),
                "extrinsics": [extrinsic.hex() for extrinsic in self.extrinsics],
                "events": self.events.hex(),
                "changes": {k.hex(): None if v is None else v.hex() for k, v in self.changes.items()},
            },
            separators=(",", ":"),
        ).encode()
        return _check(body) + b" " + body + b"\n"

    @staticmethod
    def from_line(line: bytes) -> BlockRecord:
        """Parse a line; ``ValueError`` when it is torn or damaged."""
        check, _, body = line.rstrip(b"\n").partition(b" ")
        if not line.endswith(b"\n") or check != _check(body):
            raise ValueError("damaged line")
        raw: dict[str, Any] = json.loads(body)
        return BlockRecord(
            number=raw["block"],
            digest=bytes.fromhex(raw["digest"]),
            extrinsics=tuple(bytes.fromhex(extrinsic) for extrinsic in raw["extrinsics"]),
            events=bytes.fromhex(raw["events"]),
            changes={bytes.fromhex(k): None if v is None else bytes.fromhex(v) for k, v in raw["changes"].items()},
        )


class Journal:
    """The files ``journal`` and ``snapshot`` in ``folder``, which no other process may write."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._snapshot_path = folder / "snapshot"
        self._path = folder / "journal"
        self.records = list(self._load())
        if self._path.exists() and self._path.stat().st_size > FOLD_BYTES:
            self.records = [self._fold(self.records)]
        self._file = self._path.open("ab", buffering=0)
        sync_folder(folder)

    def append(self, record: BlockRecord) -> None:
        """Write and fsync. The block exists when this returns."""
        line = record.to_line()
        if self._file.write(line) != len(line):
            raise OSError("the disk is full")
        os.fsync(self._file.fileno())
        if self._file.tell() > FOLD_BYTES:
            self._fold(list(self._load()))
            self._file.close()
            self._file = self._path.open("ab", buffering=0)

    def close(self) -> None:
        """Close the file; every block in it is durable already."""
        self._file.close()

    def _load(self) -> Iterator[BlockRecord]:
        start = -1
        if self._snapshot_path.exists():
            try:
                snapshot = BlockRecord.from_line(self._snapshot_path.read_bytes())
            except ValueError:
                raise _damaged(self._snapshot_path) from None
            start = snapshot.number
            yield snapshot
        for record in self._read_lines():
            if record.number > start:
                yield record

    def _read_lines(self) -> Iterator[BlockRecord]:
        if not self._path.exists():
            return
        lines = self._path.read_bytes().splitlines(keepends=True)
        good_bytes = 0
        for index, line in enumerate(lines):
            try:
                record = BlockRecord.from_line(line)
            except ValueError:
                if index + 1 < len(lines):
                    raise _damaged(self._path) from None
                os.truncate(self._path, good_bytes)
                return
            good_bytes += len(line)
            yield record

    def _fold(self, records: list[BlockRecord]) -> BlockRecord:
        """Merge ``records``, which are all that there are, into the snapshot, and empty the journal."""
        state: dict[bytes, bytes] = {}
        for record in records:
            for key, value in record.changes.items():
                if value is None:
                    state.pop(key, None)
                else:
                    state[key] = value
        last = records[-1]
        folded = BlockRecord(last.number, last.digest, last.extrinsics, last.events, dict(state))
        write_atomically(self._snapshot_path, folded.to_line())
        write_atomically(self._path, b"")
        return folded


def _check(body: bytes) -> bytes:
    return hashlib.sha256(body).hexdigest()[:CHECK_CHARS].encode()


def _damaged(path: Path) -> SetupError:
    return SetupError(f"{path} is damaged: restore it from a copy, or start a new chain in another folder")
