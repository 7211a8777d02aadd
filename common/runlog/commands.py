"""Commands that a run's owner signs and lays into the bucket, for whoever leads: objects named by their hash.

A command names the slot of the log that its owner had seen last, so it can be told whether it still means anything
(``orders.py``). The leader notes its hash in the log when it obeys, and no command is obeyed twice; ``brigade run
verify`` proves the command behind the entry.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from common import keys
from common.errors import Rejected
from common.identity import SignedRecord, Signer, decode_record, sign_record
from common.runlog.state import RunState
from common.spec import SCHEMA, RunSpec
from common.store.port import ObjectMissing, ObjectStore
from common.typed import from_json, to_json
from common.units import Hotkey, Revision, RoundId, Sha256, sha256_hex

COMMAND = "command"
MAX_COMMAND_BYTES = 16 * 1024
MAX_READ = 1000
"""Commands that one look reads: those that are known already don't count."""
Action = Literal["pause", "resume", "rollback", "abort_round"]


@dataclass(frozen=True)
class Command:
    """One order of the owner."""

    schema: int
    run: str
    signer: Hotkey
    action: Action
    seq: int
    """Slot of the log's newest entry when it was signed; of ``resume``: slot of the pause that it ends."""
    at_ms: int
    """The owner's wall clock, for people, and to tell the later of two orders."""
    revision: Revision | None = None
    """Of ``rollback``: where to."""
    round: RoundId | None = None
    """Of ``abort_round``: which one."""

    def __post_init__(self) -> None:
        named = (self.revision is not None, self.round is not None)
        if named != (self.action == "rollback", self.action == "abort_round"):
            raise ValueError("a rollback names a revision, an abort_round a round, and no other command does")


@dataclass(frozen=True)
class Order:
    """A command as it lies in the bucket."""

    sha256: Sha256
    command: Command


def pause_command(state: RunState, owner: Signer, at_ms: int) -> SignedRecord:
    """The order to open no further round. ValueError when the run is paused."""
    if state.paused is not None:
        raise ValueError(f"the run is paused already, since slot {state.paused.seq}")
    return _sign(Command(SCHEMA, state.run, owner.hotkey, "pause", state.next_seq - 1, at_ms), owner)


def resume_command(state: RunState, owner: Signer, at_ms: int) -> SignedRecord:
    """The order to go on after the present pause. ValueError when the run is not paused."""
    if state.paused is None:
        raise ValueError("the run is not paused")
    return _sign(Command(SCHEMA, state.run, owner.hotkey, "resume", state.paused.seq, at_ms), owner)


def rollback_command(state: RunState, owner: Signer, at_ms: int, revision: Revision) -> SignedRecord:
    """The order to go back to ``revision``. ValueError when the log does not know it, or it was deleted."""
    if revision not in state.revisions:
        raise ValueError(f"the run has revisions 0 to {state.next_revision - 1}, not {revision}")
    if gone := state.why_gone(revision):
        raise ValueError(gone)
    newest = state.next_seq - 1
    return _sign(Command(SCHEMA, state.run, owner.hotkey, "rollback", newest, at_ms, revision=revision), owner)


def abort_command(state: RunState, owner: Signer, at_ms: int) -> SignedRecord:
    """The order to end the open round without a revision. ValueError when none is open."""
    if state.open_round is None:
        raise ValueError("no round is open")
    newest, round_id = state.next_seq - 1, state.open_round.round
    return _sign(Command(SCHEMA, state.run, owner.hotkey, "abort_round", newest, at_ms, round=round_id), owner)


def put_command(store: ObjectStore, record: SignedRecord) -> Sha256:
    """Lay a command into the bucket. Raises as ``ObjectStore.put``."""
    data = record.encode()
    sha256 = sha256_hex(data)
    store.put(keys.command_key(str(record.body["run"]), sha256), data)
    return sha256


def decode_command(data: bytes, spec: RunSpec) -> Command:
    """Read a command from foreign bytes. Raises ``Rejected``, and ``wrong_signer`` unless the owner signed it."""
    record = decode_record(COMMAND, data, spec.run, SCHEMA, MAX_COMMAND_BYTES)
    command = from_json(Command, record.body, "bad_command")
    if command.signer != spec.owner:
        raise Rejected("wrong_signer", "a command is signed by the run's owner")
    return command


def read_orders(store: ObjectStore, spec: RunSpec, known: frozenset[Sha256] = frozenset()) -> tuple[Order, ...]:
    """All commands of the owner in the bucket but those ``known``. Blocking.

    What is no command of the owner is passed over. Raises as ``ObjectStore``.
    """
    found: list[Order] = []
    reads = 0
    for info in store.list(keys.commands_prefix(spec.run)):
        parts = keys.parse_key(spec.run, info.key)
        sha256 = None if parts is None else parts.sha256
        if sha256 is None or sha256 in known or info.size_bytes > MAX_COMMAND_BYTES:
            continue
        reads += 1
        if reads > MAX_READ:
            break
        order = _read(store, spec, info.key, sha256)
        if order is not None:
            found.append(order)
    return tuple(found)


def _read(store: ObjectStore, spec: RunSpec, key: str, sha256: Sha256) -> Order | None:
    try:
        data = store.get(key, max_bytes=MAX_COMMAND_BYTES).body
        command = decode_command(data, spec)
    except (ObjectMissing, Rejected):
        return None
    return Order(sha256, command) if sha256_hex(data) == sha256 else None


def _sign(command: Command, owner: Signer) -> SignedRecord:
    body = to_json(command)
    assert isinstance(body, dict)
    return sign_record(COMMAND, body, owner)
