"""One conditional put, and the answer to the only question that matters after it: whose bytes lie there now?

Invariant: the answer comes from the store. A reply that was lost, a refusal and a passing fault are all settled by
reading the key again: the writer's own bytes mean that it won, others mean that it lost, the old version that the
same bytes are sent once more. So does a key that is still free; but a version that was to be replaced and is gone is
lost, for no repeat can bring it back. Bodies hold a nonce, so nobody else's bytes can look like one's own.
Repeats are counted once: put and look are one attempt, and a process that has deadlines gives a store that does not
repeat by itself (``NO_RETRIES``).
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass

from common.errors import Rejected, Retryable
from common.store.port import ObjectMissing, ObjectStore, PreconditionFailed
from common.store.retry import RetryPolicy, Sleep, Uniform, with_retries

MAX_READ_BYTES = 16 << 20
"""Far more than a valid log entry or lease has: what a writer gone wrong may have put there must still be readable."""
OVERSIZED = b""
"""What an object of more bytes counts as, for every reader: a log slot of that size is void and its hash, which the
next entry names, is that of no bytes. So nobody has to read it, however large it is, and all name the same hash."""
WRITE_POLICY = RetryPolicy(attempts=6)


@dataclass(frozen=True)
class Patience:
    """How often a storage call is repeated, and by which sleep and dice."""

    policy: RetryPolicy = WRITE_POLICY
    sleep: Sleep = time.sleep
    uniform: Uniform = random.random


@dataclass(frozen=True)
class Holder:
    """What lies at a key after a conditional put."""

    mine: bool
    body: bytes
    etag: str


GONE = Holder(False, b"", "")
"""Lost, and not to anybody: the version that was to be replaced has been deleted. No object has an empty ETag."""


def put_once(store: ObjectStore, key: str, body: bytes, replaces: str | None, patience: Patience) -> Holder:
    """Put ``body`` where the key is free (``replaces`` None) or holds the version with that ETag.

    Raises ``Retryable`` when the store stays away: the put may or may not have happened.
    """
    return with_retries(
        lambda: _attempt(store, key, body, replaces),
        patience.policy,
        sleep=patience.sleep,
        uniform=patience.uniform,
    )


def read_now(store: ObjectStore, key: str, patience: Patience) -> Holder | None:
    """The object as it is, as nobody's in particular; None when there is none."""
    return with_retries(lambda: _read_once(store, key), patience.policy, sleep=patience.sleep, uniform=patience.uniform)


def is_oversized(refusal: Rejected) -> bool:
    """Whether a read of at most ``MAX_READ_BYTES`` was refused because there are more."""
    return refusal.code == "too_large"


def _read_once(store: ObjectStore, key: str) -> Holder | None:
    try:
        fetched = store.get(key, max_bytes=MAX_READ_BYTES)
    except ObjectMissing:
        return None
    except Rejected as refusal:
        if not is_oversized(refusal):
            raise
        info = store.head(key)
        return None if info is None else Holder(False, OVERSIZED, info.etag)
    return Holder(False, fetched.body, fetched.info.etag)


def _attempt(store: ObjectStore, key: str, body: bytes, replaces: str | None) -> Holder:
    try:
        etag = store.put(key, body, if_none_match=replaces is None, if_match=replaces)
        return Holder(True, body, etag)
    except (PreconditionFailed, Retryable) as fault:
        found = _read_once(store, key)
        if found is not None and found.body == body:
            return Holder(True, body, found.etag)
        if found is not None and found.etag != replaces:
            return found
        if found is None and replaces is not None:
            return GONE
        raise Retryable(f"{key} was not written: {fault}") from fault
