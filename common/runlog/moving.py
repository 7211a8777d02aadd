"""Moving a run to another bucket: everything is copied before the log says so, and the entry that says so comes last.

The owner's ``storage_moved`` is the last entry that counts in the bucket it leaves; the log goes on at the next slot in
the other one. In between nobody writes: whoever has read the entry writes nothing more where it was, and takes the new
bucket only once that very slot is there, behind all the rest. Every step may be done again: a copy that is cut off at
any point is continued by the same call, a large object from the part where it stood.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from common import keys
from common.errors import OperatorError, Rejected
from common.runlog.casput import MAX_READ_BYTES
from common.runlog.entries import StorageMoved
from common.runlog.reader import LogReader
from common.runlog.state import RunState
from common.spec import RunSpec
from common.store.copying import PartCopier, Send
from common.store.multipart import PART_BYTES
from common.store.place import BucketPlace
from common.store.port import ObjectInfo, ObjectMissing, ObjectStore, PreconditionFailed
from common.store.reader import StoreReader
from common.units import Sha256, format_bytes, sha256_hex

WORKERS = 8
"""Objects at a time: no more than so many parts are in memory, a few times over."""
STAYS = ("lease", "probe")
"""Kinds of objects that are not copied."""
Say = Callable[[str], None]
Append = Callable[[RunState, StorageMoved], RunState]


@dataclass(frozen=True)
class Buckets:
    """The bucket that a run leaves and the one it goes to."""

    old: ObjectStore
    new: ObjectStore
    spec: RunSpec
    send: Send
    """Puts parts into the new one."""
    part_bytes: int = PART_BYTES
    """What is larger goes in parts of this size."""


def move_run(buckets: Buckets, move: StorageMoved, append: Append, settle: Callable[[], None], say: Say) -> RunState:
    """Copy the run and its dataset, have the move appended, copy the rest; the state up to the move.

    ``append`` writes the owner's entry into the old bucket, ``settle`` waits until everybody has read it. Raises
    OperatorError when the new bucket holds something else, or another move was begun; ``Rejected`` and ``Retryable``
    as the stores and ``append`` do.
    """
    state, copier = _read(buckets.old, buckets.spec, move.source), Copier(buckets, say)
    if not state.left(move.source):
        copier.copy(state, moved=False)
        state = append(_read(buckets.old, buckets.spec, move.source), move)
        say(f"slot {state.next_seq - 1} says that the run moves to {move.target.base_url}")
    if state.moved != move:
        where = state.moved.target.base_url if state.moved else "nowhere"
        raise OperatorError(f"the log says that this run has moved to {where}: continue that move")
    last = keys.log_key(buckets.spec.run, state.next_seq - 1)
    if buckets.new.head(last) is None:
        settle()
        while copier.copy(state, moved=True):
            pass
        _check(buckets, state)
        copier.copy_slot(last)
    _check_tail(buckets.new, state)
    return state


class Copier:
    """Copies what is missing, pass after pass."""

    def __init__(self, buckets: Buckets, say: Say) -> None:
        self._old = buckets.old
        self._new = buckets.new
        self._parts = PartCopier(buckets.old, buckets.new, buckets.send, buckets.part_bytes)
        self._say = say
        self._copied: dict[str, str] = {}
        """ETags of what this process has copied: a manifest may be written again with another receipt."""

    def copy(self, state: RunState, moved: bool) -> int:
        """One pass over the old bucket; how many objects were copied. The log comes first, and in order.

        ``moved``: the last slot that ``state`` has read is the move, which is copied last of all.
        """
        there = _sizes(self._new, state)
        listed = [info for info in _objects(self._old, state, moved) if self._is_due(state, info, there)]
        for key in sorted(info.key for info in listed if _seq(state, info.key) is not None):
            self.copy_slot(key)
        others = [info for info in listed if _seq(state, info.key) is None]
        with ThreadPoolExecutor(WORKERS) as pool:
            for _ in pool.map(lambda info: self._copy(state, info), others):
                pass
        self._copied.update((info.key, info.etag) for info in listed)
        if listed:
            self._say(f"copied {len(listed)} objects, {format_bytes(sum(info.size_bytes for info in listed))}")
        return len(listed)

    def copy_slot(self, key: str) -> None:
        """A slot of the log, which nothing may replace. OperatorError when another one is there."""
        body = self._old.get(key, max_bytes=MAX_READ_BYTES).body
        try:
            self._new.put(key, body, if_none_match=True)
        except PreconditionFailed:
            if self._new.get(key, max_bytes=MAX_READ_BYTES).body != body:
                raise OperatorError(f"the new bucket holds another {key}: name a prefix nothing is under") from None

    def _is_due(self, state: RunState, info: ObjectInfo, there: Mapping[str, int]) -> bool:
        again = _kind(state, info.key) == "manifest" and self._copied.get(info.key) != info.etag
        return again or there.get(info.key) != info.size_bytes

    def _copy(self, state: RunState, info: ObjectInfo) -> None:
        """An object that a hash names is put only if it has that hash; one that has gone meanwhile is left out."""
        named = _named(state, info.key)
        try:
            if info.size_bytes > self._parts.part_bytes:
                self._parts.copy(info, named)
                return
            body = self._old.get(info.key, max_bytes=PART_BYTES).body
        except ObjectMissing:
            return
        if named is not None and sha256_hex(body) != named:
            raise Rejected("checksum_mismatch", f"{info.key} does not have the SHA-256 in its name")
        self._new.put(info.key, body)


def _read(store: ObjectStore, spec: RunSpec, here: BucketPlace | None = None) -> RunState:
    return LogReader(StoreReader(store), spec, lambda: here).catch_up()


def _sizes(store: ObjectStore, state: RunState) -> dict[str, int]:
    return {info.key: info.size_bytes for prefix in _prefixes(state) for info in store.list(prefix)}


def _prefixes(state: RunState) -> tuple[str, str]:
    return keys.dataset_prefix(state.spec.data.dataset), keys.run_prefix(state.run)


def _objects(store: ObjectStore, state: RunState, ends_with_move: bool) -> list[ObjectInfo]:
    """What is to be copied: all but the lease, which belongs to whoever leads next, what probes have left, which nobody
    reads again, the slot of the move and those behind it."""
    found = [info for prefix in _prefixes(state) for info in store.list(prefix)]
    end = state.next_seq - 1 if ends_with_move else None
    return [info for info in found if _kind(state, info.key) not in STAYS and not _is_behind(state, info.key, end)]


def _is_behind(state: RunState, key: str, end: int | None) -> bool:
    seq = _seq(state, key)
    return end is not None and seq is not None and seq >= end


def _check(buckets: Buckets, state: RunState) -> None:
    """Before the last slot: the other bucket's log ends right before it, and nothing is missing."""
    found = _read(buckets.new, buckets.spec)
    if found.next_seq != state.next_seq - 1:
        raise OperatorError(f"the new bucket's log ends at slot {found.next_seq - 1}, not at {state.next_seq - 2}")
    there = _sizes(buckets.new, state)
    missing = [
        info.key for info in _objects(buckets.old, state, ends_with_move=True) if there.get(info.key) != info.size_bytes
    ]
    if missing:
        raise Rejected("incomplete", f"{len(missing)} objects are not in the new bucket, {missing[0]} first: try again")


def _check_tail(store: ObjectStore, state: RunState) -> None:
    """The other bucket's log, read from its beginning, has the move with the same hash; what follows it is new."""
    seq = state.next_seq - 1
    found = _read(store, state.spec)
    body = store.get(keys.log_key(state.run, seq), max_bytes=MAX_READ_BYTES).body
    if found.next_seq <= seq or sha256_hex(body) != state.head_sha256 or found.moved != state.moved:
        raise OperatorError(f"the new bucket's log is another one: slot {seq} is not the move")


def _kind(state: RunState, key: str) -> str:
    parts = keys.parse_key(state.run, key)
    return parts.kind if parts else ""


def _seq(state: RunState, key: str) -> int | None:
    parts = keys.parse_key(state.run, key)
    return parts.seq if parts else None


def _named(state: RunState, key: str) -> Sha256 | None:
    """The hash of the bytes that a key promises; of a delta in parts nobody but its reader can vouch for it."""
    parts = keys.parse_key(state.run, key)
    return parts.sha256 if parts and parts.kind not in ("manifest", "delta") else None
