"""A bucket as a verifier reads it: every failure names its object, and what was read and found right is noted."""

from __future__ import annotations

import hashlib

from common import keys
from common.errors import BrigadeError, Rejected
from common.runlog.reader import fetch_slot
from common.store.port import ObjectInfo, ObjectMissing, ObjectStore
from common.store.reader import StoreReader
from common.units import Sha256

BLOCK_BYTES = 16 << 20


class VerifyError(BrigadeError):
    """The first wrong thing: the object's key, and what is wrong with it."""

    def __init__(self, key: str, what: str) -> None:
        what = what.removeprefix(f"{key} ")  # a reader's message may begin with the key
        super().__init__(f"{key}: {what}")
        self.key = key
        self.what = what


class ProvingReader:
    """An ``ObjectReader`` that raises ``VerifyError`` where others raise ``Rejected``."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._reader = StoreReader(store)
        self.proved: set[str] = set()
        """Keys of objects that were read whole and have the hash that the log gives them."""

    def fetch(self, key: str, *, max_bytes: int, sha256: Sha256 | None = None, size_bytes: int | None = None) -> bytes:
        """See ``ObjectReader.fetch``; what is missing or wrong ends the verification."""
        try:
            body = self._reader.fetch(key, max_bytes=max_bytes, sha256=sha256, size_bytes=size_bytes)
        except ObjectMissing:
            raise VerifyError(key, "it is missing, but the log refers to it") from None
        except Rejected as error:
            raise VerifyError(key, error.message) from None
        if sha256 is not None:
            self.proved.add(key)
        return body

    def find(self, key: str, max_bytes: int) -> bytes | None:
        """The object, or None when there is none."""
        try:
            return self._reader.fetch(key, max_bytes=max_bytes)
        except ObjectMissing:
            return None
        except Rejected as error:
            raise VerifyError(key, error.message) from None

    def find_slot(self, run: str, seq: int) -> bytes | None:
        """A slot of the log as every reader takes it, or None when it is free."""
        try:
            return fetch_slot(self._reader, run, seq)
        except Rejected as error:
            raise VerifyError(keys.log_key(run, seq), error.message) from None

    def exists(self, key: str) -> bool:
        return self._store.head(key) is not None

    def prove_hash(self, info: ObjectInfo, sha256: Sha256) -> None:
        """Hash an object of any size block by block, and compare."""
        digest = hashlib.sha256()
        for start in range(0, info.size_bytes, BLOCK_BYTES):
            end = min(start + BLOCK_BYTES, info.size_bytes)
            digest.update(self._store.get(info.key, start=start, end=end, max_bytes=BLOCK_BYTES).body)
        if digest.hexdigest() != sha256:
            raise VerifyError(info.key, "its bytes do not have the SHA-256 in its name")
        self.proved.add(info.key)
