"""The chain's key-value state with the last versions of every key, and overlays that a failed call throws away.

A version is ``(block, value or None)``; reading at block n takes the newest version at or below n. Versions that no
block within the horizon can see are dropped when their key is written again.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping
from typing import Protocol

HORIZON_BLOCKS = 4096

Changes = dict[bytes, bytes | None]


class Readable(Protocol):
    """Something that holds raw values by key."""

    def read(self, key: bytes) -> bytes | None:
        """The value, or None."""
        ...


class Storage:
    """All versions. Only ``commit`` changes it, one block at a time, in order."""

    def __init__(self) -> None:
        self._versions: dict[bytes, list[tuple[int, bytes | None]]] = {}
        self._keys: list[bytes] = []

    def read(self, key: bytes) -> bytes | None:
        """The newest value."""
        versions = self._versions.get(key)
        return versions[-1][1] if versions else None

    def read_at(self, key: bytes, block: int) -> bytes | None:
        """The value as of the end of ``block``."""
        for number, value in reversed(self._versions.get(key, [])):
            if number <= block:
                return value
        return None

    def keys_at(self, prefix: bytes, after: bytes, count: int, block: int) -> list[bytes]:
        """Up to ``count`` keys with ``prefix`` behind ``after``, in order, that have a value at ``block``."""
        found: list[bytes] = []
        for index in range(bisect_left(self._keys, max(prefix, after)), len(self._keys)):
            key = self._keys[index]
            if not key.startswith(prefix) or len(found) == count:
                break
            if key != after and self.read_at(key, block) is not None:
                found.append(key)
        return found

    def commit(self, block: int, changes: Changes) -> None:
        """Make ``changes`` the state at the end of ``block``."""
        for key, value in changes.items():
            versions = self._versions.setdefault(key, [])
            if not versions:
                insort(self._keys, key)
            versions.append((block, value))
            while len(versions) > 1 and versions[1][0] <= block - HORIZON_BLOCKS:
                del versions[0]


class View:
    """The state at one block, read only."""

    def __init__(self, storage: Storage, block: int) -> None:
        self._storage, self._block = storage, block

    def read(self, key: bytes) -> bytes | None:
        """The value at the block."""
        return self._storage.read_at(key, self._block)


class Overlay:
    """Changes on top of a readable; kept by ``merge`` into the one below, or dropped."""

    def __init__(self, below: Readable) -> None:
        self._below = below
        self.changes: Changes = {}

    def read(self, key: bytes) -> bytes | None:
        """The changed value, or the one below."""
        return self.changes[key] if key in self.changes else self._below.read(key)

    def write(self, key: bytes, value: bytes | None) -> None:
        """Set a value; None deletes."""
        self.changes[key] = value

    def merge(self, changes: Mapping[bytes, bytes | None]) -> None:
        """Take over the changes of an overlay above."""
        self.changes.update(changes)
