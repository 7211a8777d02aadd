"""Appending to the log: one conditional put for each entry, and no guess about its outcome.

Invariants:

- An entry is tried on the writer's own state first, so that it never knowingly writes a void one.
- A slot that holds the writer's own bytes is won, however the replies went: a cut connection deposes nobody. A slot
  that holds a void entry is passed by; a slot that holds another's valid entry is lost, and the caller decides anew.
- After an append that ended in ``Retryable`` the entry may still be there: the next append finds it in its slot and
  says ``LostSlot`` with a state that contains it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable

from common import keys
from common.clock import Clock
from common.errors import Rejected, Retryable
from common.identity import Signer
from common.runlog.casput import Patience, put_once, read_now
from common.runlog.entries import NO_PREVIOUS, Draft, EntryData, Genesis, encode_entry
from common.runlog.reader import Here, nowhere, step_of, walk
from common.runlog.replay import Step, apply, begin
from common.runlog.state import RunState
from common.spec import RunSpec
from common.store.port import ObjectStore
from common.units import Sha256, sha256_hex

NonceSource = Callable[[], str]
MAX_VOIDS_PASSED = 32
Note = Callable[[Step], None]


def no_note(step: Step) -> None:
    """For who needs no more than the state."""


class LostSlot(Rejected):
    """Somebody else's valid entry came first. ``state`` is caught up: decide again from it."""

    def __init__(self, seq: int, state: RunState) -> None:
        super().__init__("lost_slot", f"another entry took slot {seq} of the log")
        self.state = state


def random_nonce() -> str:
    """128 random bits."""
    return secrets.token_hex(16)


class LogWriter:
    """Appends entries signed by one hotkey to one run's log."""

    def __init__(
        self,
        store: ObjectStore,
        spec: RunSpec,
        signer: Signer,
        clock: Clock,
        nonce_source: NonceSource = random_nonce,
        patience: Patience | None = None,
        here: Here = nowhere,
        note: Note = no_note,
    ) -> None:
        """``here`` as in ``LogReader``; ``note`` is told of each slot that is read, in order."""
        self._store = store
        self._spec = spec
        self._signer = signer
        self._clock = clock
        self._nonce = nonce_source
        self._patience = patience or Patience()
        self._here = here
        self._note = note

    def begin(self, genesis: Genesis, reason: str) -> RunState:
        """Write the genesis into slot 0; the signer is the owner. Raises ``Rejected('run_exists')``."""
        slot = self._encode(0, NO_PREVIOUS, 0, reason, genesis)
        state = begin(self._spec, slot)
        if not put_once(self._store, keys.log_key(self._spec.run, 0), slot, None, self._patience).mine:
            raise Rejected("run_exists", f"run {self._spec.run} has a log already; choose another name")
        return state

    def append(self, state: RunState, data: EntryData, reason: str, term: int) -> RunState:
        """Write ``data`` into the next slot as an entry of ``term``; the state after it.

        Raises ``LostSlot``; ``Rejected`` with the code of the rule that the entry would break (``stale_term`` and
        ``not_leader``: another leads now); ``Retryable`` when the store stays away, outcome unknown.
        """
        for _ in range(MAX_VOIDS_PASSED):
            self._check_place(state)
            slot = self._encode(state.next_seq, state.head_sha256, term, reason, data)
            step = apply(state, slot)
            if step.void is not None:
                raise Rejected(step.void.code, f"not written: {step.void.message}")
            holder = put_once(self._store, self._key(state.next_seq), slot, None, self._patience)
            if holder.mine:
                return step.state
            theirs = step_of(state, holder.body, self._read_slot)
            if theirs.state.head_sha256 == step.state.head_sha256:
                return theirs.state  # ours after all: what was read first had been damaged on its way
            self._note(theirs)
            if theirs.void is None:
                raise LostSlot(state.next_seq, self.catch_up(theirs.state))
            state = theirs.state
        raise Retryable(f"{MAX_VOIDS_PASSED} void entries in a row came first: another writer of this run is broken")

    def catch_up(self, state: RunState | None = None) -> RunState:
        """The state after the last slot in the store. Raises as ``LogReader.catch_up``."""
        for step in walk(self._spec, self._read_slot, state, self._here):
            self._note(step)
            state = step.state
        assert state is not None
        return state

    def _check_place(self, state: RunState) -> None:
        if state.left(self._here()):
            assert state.moved is not None
            raise Retryable(f"the run has moved to {state.moved.target.base_url}: nothing more is written here")

    def slot_sha256(self, seq: int) -> Sha256 | None:
        """The hash of a slot's bytes as they are in the store now; None for a free one. ``Retryable``."""
        slot = self._read_slot(seq)
        return None if slot is None else sha256_hex(slot)

    def _read_slot(self, seq: int) -> bytes | None:
        found = read_now(self._store, self._key(seq), self._patience)
        return None if found is None else found.body

    def _key(self, seq: int) -> str:
        return keys.log_key(self._spec.run, seq)

    def _encode(self, seq: int, prev: Sha256, term: int, reason: str, data: EntryData) -> bytes:
        at_ms = self._clock.wall_ns() // 1_000_000
        draft = Draft(self._spec.run, seq, prev, term, self._nonce(), at_ms, reason, data)
        return encode_entry(draft, self._signer)
