"""Reading the log by plain GETs: slot after slot until one is missing. No listing, no credentials, no leader.

A reader keeps the state it has and asks only for what came after, so that following a run costs one GET of a missing
key at each look.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from common import keys
from common.errors import Rejected, Retryable
from common.runlog.casput import MAX_READ_BYTES, OVERSIZED, is_oversized
from common.runlog.entries import Genesis, decode_entry
from common.runlog.replay import Step, apply, begin
from common.runlog.state import RunState
from common.spec import MAX_SPEC_BYTES, RunSpec, decode_spec
from common.store.place import BucketPlace
from common.store.port import ObjectMissing, ObjectReader
from common.units import Sha256

MOST_READS = 5
"""Of a slot that counts for nothing, until two agree."""
ReadSlot = Callable[[int], bytes | None]
"""The bytes of a slot, or None when nothing was written there yet."""
Here = Callable[[], BucketPlace | None]
"""The bucket that is read now; None where the caller vouches for it."""


def nowhere() -> None:
    """For readers of a bucket that is known to be the run's, and will be."""


class LogReader:
    """A run's log through an ``ObjectReader``."""

    def __init__(self, reader: ObjectReader, spec: RunSpec, here: Here = nowhere) -> None:
        """``here`` tells which bucket is read: once the log says that the run has left it, nothing there counts."""
        self._reader = reader
        self._spec = spec
        self._here = here

    def steps(self, state: RunState | None = None) -> Iterator[Step]:
        """One step for each slot after ``state``, or for the whole log.

        Raises ``Rejected('no_genesis')`` or as ``replay.begin`` for a log without a valid beginning, and
        ``Retryable`` when the store stays away: what was yielded before stays true.
        """
        return walk(self._spec, self.read_slot, state, self._here)

    def catch_up(self, state: RunState | None = None) -> RunState:
        """The state after the last slot written so far. Raises as ``steps``."""
        return catch_up(self._spec, self.read_slot, state, self._here)

    def read_slot(self, seq: int) -> bytes | None:
        """The bytes of slot ``seq``, or None when it is still free."""
        return fetch_slot(self._reader, self._spec.run, seq)


def fetch_slot(reader: ObjectReader, run: str, seq: int) -> bytes | None:
    """The bytes of a slot, ``OVERSIZED`` for one with more than ``MAX_READ_BYTES``, None for a free one."""
    try:
        return reader.fetch(keys.log_key(run, seq), max_bytes=MAX_READ_BYTES)
    except ObjectMissing:
        return None
    except Rejected as refusal:
        if not is_oversized(refusal):
            raise
        return OVERSIZED


def walk(spec: RunSpec, read_slot: ReadSlot, state: RunState | None, here: Here = nowhere) -> Iterator[Step]:
    """One step for each slot from ``state`` on, until one is free or the log goes on elsewhere."""
    if state is None:
        state, first = _beginning(spec, read_slot)
        yield Step(state, decode_entry(first, spec.run), None)
    while not state.left(here()) and (slot := read_slot(state.next_seq)) is not None:
        step = step_of(state, slot, read_slot)
        state = step.state
        yield step


def _beginning(spec: RunSpec, read_slot: ReadSlot) -> tuple[RunState, bytes]:
    """The state after the genesis, and its bytes; what is none is read again, as in ``step_of``."""
    first = read_slot(0)
    for _ in range(MOST_READS):
        if first is None:
            raise _no_genesis(spec.run)
        try:
            return begin(spec, first), first
        except Rejected:
            again = read_slot(0)
            if again == first:
                raise
            first = again
    raise _unsteady(0)


def step_of(state: RunState, slot: bytes, read_slot: ReadSlot) -> Step:
    """The step that the bytes of the next slot are.

    Bytes that count for nothing are read again first: no hash in the key proves them, and whoever takes what was
    damaged on its way for the slot's own bytes is lost to the log for good, since every later entry names others.
    Raises ``Retryable`` when a slot reads differently each time.
    """
    for _ in range(MOST_READS):
        step = apply(state, slot)
        if step.void is None:
            return step
        again = read_slot(state.next_seq)
        if again == slot:
            return step
        slot = slot if again is None else again
    raise _unsteady(state.next_seq)


def catch_up(spec: RunSpec, read_slot: ReadSlot, state: RunState | None, here: Here = nowhere) -> RunState:
    """The state after the last slot written so far."""
    for step in walk(spec, read_slot, state, here):
        state = step.state
    assert state is not None
    return state


def load_run(reader: ObjectReader, run: str, spec_sha256: Sha256) -> RunSpec:
    """The spec of ``run``, proved to be the one whose hash the owner committed on chain.

    Raises ``ObjectMissing``, ``Rejected`` (``checksum_mismatch``, ``bad_spec``, ``wrong_run``) and ``Retryable``.
    """
    data = reader.fetch(keys.spec_key(run), max_bytes=MAX_SPEC_BYTES, sha256=spec_sha256)
    spec = decode_spec(data)
    if spec.run != run:
        raise Rejected("wrong_run", f"the spec stored for run {run} is that of run {spec.run}")
    return spec


def spec_hash_of_log(reader: ObjectReader, run: str) -> Sha256:
    """The spec's hash that the genesis names: what there is to go by without the chain.

    Raises ``Rejected``: ``no_genesis``, ``bad_genesis``, or the decoder's codes; and ``Retryable``.
    """
    slot = fetch_slot(reader, run, 0)
    if slot is None:
        raise _no_genesis(run)
    data = decode_entry(slot, run).data
    if not isinstance(data, Genesis):
        raise Rejected("bad_genesis", f"the log of run {run} does not begin with a genesis")
    return data.spec_sha256


def _no_genesis(run: str) -> Rejected:
    return Rejected("no_genesis", f"run {run} has no log here: its owner starts it with `brigade run create`")


def _unsteady(seq: int) -> Retryable:
    return Retryable(f"slot {seq} of the log reads differently each time: the line to the storage is bad")
