"""A store as the contract tests see it, in memory or on a real server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from common.clock import ManualClock
from common.store.memory import MemoryStore
from common.store.multipart import md5_hex
from common.store.port import ObjectStore, PresignedPut
from common.units import sha256_hex


@dataclass(frozen=True)
class Bench:
    """A store, and how the holder of a presigned URL uses it. ``presign_expired`` makes a dead put URL."""

    store: ObjectStore
    send: Callable[[PresignedPut, bytes], str]
    presign_expired: Callable[[str, bytes], PresignedPut]


def presign(store: ObjectStore, key: str, body: bytes, expires_s: int = 60) -> PresignedPut:
    """A URL for ``body``."""
    return store.presign_put(key, size_bytes=len(body), sha256=sha256_hex(body), expires_s=expires_s)


def presign_part(store: ObjectStore, key: str, upload_id: str, number: int, body: bytes) -> PresignedPut:
    """A URL for ``body`` as a part."""
    return store.presign_part(key, upload_id, number=number, size_bytes=len(body), md5=md5_hex(body), expires_s=60)


def memory_bench() -> Bench:
    """One in memory, with a clock of its own."""
    clock = ManualClock()
    store = MemoryStore(clock)

    def presign_expired(key: str, body: bytes) -> PresignedPut:
        presigned = presign(store, key, body)
        clock.advance(61)
        return presigned

    return Bench(store, lambda put, body: store.redeem_put(put.url, put.headers, body), presign_expired)
